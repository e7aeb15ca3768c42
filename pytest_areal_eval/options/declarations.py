"""The plugin's options, each declared once; :mod:`.values` has what a value may be.

Invariant: nothing here reads a command line; :mod:`.settings` registers and reads what is declared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pytest_areal_eval.options.values import (
    named_dataset,
    one_of,
    own_path,
    positive_int,
    probability,
    seconds,
    shard,
    some_text,
    temperature,
    variable,
    variable_name,
    whole_number,
)

Kind = Literal["value", "flag", "list", "optional"]
"""``optional`` is a value that may be left out; on the command line it stands behind ``=``."""

NEWEST = "newest"
"""What ``--resume`` alone means."""
RESULTS_DIR = "eval-results"
"""Where runs are kept where nobody says otherwise, below the folder that pytest or ``areal-eval`` is started in."""


@dataclass(frozen=True)
class Option:
    """One setting: ``--areal-NAME``, ``--NAME`` where it is free, and the ini key ``areal_NAME``."""

    name: str
    help: str
    parse: Callable[[str], Any] = some_text
    kind: Kind = "value"
    metavar: str = "VALUE"
    short: bool = True

    @property
    def dest(self) -> str:
        """Key in ``config.option`` and name of the ini key."""
        return "areal_" + self.name.replace("-", "_")

    @property
    def long(self) -> str:
        """The spelling that always works."""
        return f"--areal-{self.name}"

    @property
    def spelling(self) -> str:
        """The spelling that people type."""
        return f"--{self.name}" if self.short else self.long


OPTIONS: tuple[Option, ...] = (
    Option(
        "model",
        "Checkpoint to evaluate: a directory, a pattern of directories ('run/step-*') or a hub name; may be given "
        "several times",
        kind="list",
        metavar="PATH",
    ),
    Option(
        "backend",
        "Inference engine, its replicas and their GPUs: hf (default), hf:d2, vllm:d4t2, sglang:d2p1t4, or openai",
        metavar="SPEC",
    ),
    Option(
        "base-url",
        "Server that runs already, such as http://127.0.0.1:8000/v1; may be given several times, each is a replica",
        kind="list",
        metavar="URL",
    ),
    Option("api-key-env", "Environment variable that holds those servers' API key", variable_name, metavar="NAME"),
    Option(
        "engine-arg",
        "Setting of the engine's server by AReaL's name or its own flag, such as max-num-seqs=64; may be given several "
        "times",
        kind="list",
        metavar="KEY=VALUE",
    ),
    Option("engine-python", "Python interpreter of the environment that has the engine", own_path, metavar="PATH"),
    Option("engine-cmd", "Words that start the engine's server, before its flags: 'vllm serve'", metavar="WORDS"),
    Option(
        "scheduler",
        "What starts the servers: local (default), ray or slurm",
        one_of("local", "ray", "slurm"),
        metavar="NAME",
    ),
    Option(
        "ray-address",
        "Ray cluster that --scheduler=ray uses: HOST:PORT, auto, or local to start one here (default: RAY_ADDRESS, "
        "else local)",
        metavar="ADDRESS",
    ),
    Option("ray-runtime-env", "Ray runtime environment of the servers: JSON, or a JSON file", metavar="JSON"),
    Option("ray-elastic", "Ray's autoscaler can add nodes: wait for what does not fit now", kind="flag"),
    Option("slurm-partition", "Slurm: partition of the servers' jobs", metavar="NAME"),
    Option("slurm-account", "Slurm: account that pays for them", metavar="NAME"),
    Option("slurm-qos", "Slurm: their quality of service", metavar="NAME"),
    Option("slurm-time", "Slurm: time limit of a job (default: the partition's)", metavar="TIME"),
    Option("slurm-constraint", "Slurm: features that their nodes must have", metavar="FEATURES"),
    Option("slurm-exclude", "Slurm: nodes not to be used, such as node[1-3]", metavar="NODES"),
    Option(
        "slurm-sbatch-arg",
        "Slurm: a further argument of sbatch, such as reservation=eval; may be given several times",
        kind="list",
        metavar="NAME=VALUE",
    ),
    Option(
        "slurm-setup",
        "Slurm: a shell line that each job runs first, such as 'module load cuda'; may be given several times",
        kind="list",
        metavar="LINE",
    ),
    Option(
        "slurm-srun-args",
        "Slurm: words for srun, where one starts a server: in an allocation, and for a replica over several nodes",
        metavar="WORDS",
    ),
    Option("slurm-prefix", "Slurm: words before a server's command, such as a container's", metavar="WORDS"),
    Option(
        "shared-dir",
        "Folder that this machine and the cluster's nodes see (default: the run's folder under --results-dir)",
        own_path,
        metavar="DIR",
    ),
    Option(
        "dataset",
        "Read the dataset of evaluation NAME from SOURCE; may be given several times",
        named_dataset,
        "list",
        "NAME=SOURCE",
    ),
    Option("limit", "Draw a seeded random sample of N items from each dataset", positive_int, metavar="N"),
    Option("item-seed", "Seed of the sample that the limit draws (default: 0)", whole_number, metavar="N"),
    Option("shard", "Run part I of N of each dataset; gates are left to the merged run", shard, metavar="I/N"),
    Option("n-samples", "Episodes for each item", positive_int, metavar="N"),
    Option("temperature", "Sampling temperature; 0 is greedy", temperature, metavar="T"),
    Option(
        "top-p", "Nucleus sampling: keep the smallest set of tokens with this probability", probability, metavar="P"
    ),
    Option("top-k", "Sample among the K likeliest tokens", positive_int, metavar="K"),
    Option("max-new-tokens", "Longest answer, in tokens", positive_int, metavar="N"),
    Option("greedy", "Take the likeliest token always", kind="flag"),
    Option(
        "seed", "Seed of the run; each episode's own seed is derived from it (default: 0)", whole_number, metavar="N"
    ),
    Option(
        "max-concurrency", "Episodes in flight at once (default: what the replicas run well)", positive_int, metavar="N"
    ),
    Option(
        "adaptive-concurrency",
        "Find out how many episodes the servers take: one more for each answer, half after a 429 or 503; the limit "
        "above is then the most (default: 1024)",
        kind="flag",
    ),
    Option("episode-timeout", "Limit of one episode in seconds (default: 600)", seconds, metavar="S"),
    Option("reward-timeout", "Limit of one reward call in seconds (default: 15)", seconds, metavar="S"),
    Option(
        "start-timeout",
        "Limit for a server to become ready in seconds (default: 600; vllm, sglang: 1800; --base-url: 20)",
        seconds,
        metavar="S",
    ),
    Option(
        "queue-timeout",
        "Limit in seconds for the first server to leave the scheduler's queue (default: 86400, a day)",
        seconds,
        metavar="S",
    ),
    Option(
        "server-cpus", "CPUs of a server for each of its GPUs, as Ray and Slurm reserve them", positive_int, metavar="N"
    ),
    Option("server-mem", "Memory likewise, in GB", positive_int, metavar="GB"),
    Option(
        "server-env",
        "Variable of the servers' environment, such as NCCL_DEBUG=WARN; NAME alone: with the value that it has here, "
        "which a token should be given by; may be given several times",
        variable,
        "list",
        "NAME[=VALUE]",
    ),
    Option(
        "gate",
        "One more condition, such as 'test_gsm8k:reward >= 0.7'; without NAME it holds for all; may be "
        "given several times",
        kind="list",
        metavar="[NAME:]COND",
    ),
    Option(
        "gate-policy",
        "Decide gates by the value (point, the default) or by its 95 % interval: then a gate may be inconclusive",
        one_of("point", "interval"),
        metavar="POLICY",
    ),
    Option("baseline", "The run that 'baseline' means in gates such as 'reward >= baseline - 0.01'", metavar="RUN"),
    Option("gate-partial", "Decide gates on a chosen part of an evaluation too", kind="flag"),
    Option(
        "replay", "Score the completions of a JSONL file (by id or index); no model is run", own_path, metavar="FILE"
    ),
    Option(
        "resume",
        "Go on with a run that was interrupted, --resume=RUN; alone: with the newest run of the same evaluations",
        kind="optional",
        metavar="RUN",
    ),
    Option("rescore", "Grade the answers of a run anew, with today's rewards; no model is run", metavar="RUN"),
    Option("from-run", "Decide today's gates on the scores of a run; nothing is run or graded", metavar="RUN"),
    Option(
        "track",
        "Send the scores to tensorboard (files in the run's folder), wandb or mlflow; may be given several times",
        one_of("tensorboard", "wandb", "mlflow"),
        "list",
        "NAME",
    ),
    Option("results-dir", f"Where runs are kept (default: {RESULTS_DIR})", own_path, metavar="DIR"),
    Option(
        "order",
        "Report items as they complete or as collected (default: auto)",
        one_of("auto", "completion", "collection"),
        metavar="ORDER",
        short=False,
    ),
    Option("config", "Take settings from an AReaL configuration, as training uses it", metavar="FILE"),
    Option(
        "set",
        "Override a key of that configuration: KEY=VALUE changes it, +KEY=VALUE adds it, ++KEY=VALUE either, ~KEY "
        "removes it; may be given several times",
        kind="list",
        metavar="KEY=VALUE",
    ),
    Option("show-config", "Print that configuration, where each value came from, and run nothing", kind="flag"),
    Option("shim", "Answer imports of AReaL from this package where AReaL is not installed", kind="flag", short=False),
    Option("trust-remote-code", "Run code that a checkpoint or a dataset brings along", kind="flag"),
)
BY_NAME = {option.name: option for option in OPTIONS}
