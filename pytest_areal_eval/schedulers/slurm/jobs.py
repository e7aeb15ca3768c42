"""One job for each instance, submitted through submitit and watched with one squeue for all.

Invariant: a job runs nothing of ours but the agent: submitit's function is ``os.execv``, so that no package of the
evaluation is needed on a node and Slurm's signals reach the agent itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pytest_areal_eval.schedulers.base import InstanceSpec, Lost, NodeFree, Shape
from pytest_areal_eval.schedulers.gpus import counted
from pytest_areal_eval.schedulers.slurm import commands
from pytest_areal_eval.schedulers.slurm.launcher import Ending, Seen
from pytest_areal_eval.schedulers.slurm.options import SlurmOptions

QUERY_PAUSE_S = 2.0
FREE_PAUSE_S = 10.0
FORGOTTEN_S = 60.0


class Jobs:
    """Submits, watches and cancels.

    Args:
        options: how to submit.
        folder: submitit's files and the jobs' own output.
        run_name: begins the jobs' names.
    """

    own_jobs = True

    def __init__(self, options: SlurmOptions, folder: Path, run_name: str) -> None:
        self._options, self._folder, self._run_name = options, folder, run_name
        self._lines: dict[str, commands.JobLine] = {}
        self._asked_at: float = -FORGOTTEN_S
        self._last_seen: dict[str, float] = {}
        self._free: tuple[float, str] = (-FREE_PAUSE_S, "")

    @property
    def place(self) -> str:
        """What the nodes belong to, for messages."""
        return f"partition {self._options.partition}" if self._options.partition else "the default partition"

    def nodes(self) -> list[NodeFree]:
        """The nodes that jobs may run on."""
        return commands.nodes_of(self._options.partition)

    def submit(self, key: str, spec: InstanceSpec, agent: list[str], exclude: Collection[str]) -> str:
        """Submit one job; returns its id.

        Raises:
            CannotFit: sbatch refuses it.
            SchedulerError: Slurm cannot take it now.
        """
        from pytest_areal_eval.schedulers.slurm.submission import submit

        name = f"{spec.name} ({_needs(spec.shape)})"
        return submit(name, agent, self._folder, self._parameters(key, spec, exclude), self._options.given())

    def look(self, ids: Sequence[str], *, anew: bool) -> dict[str, Seen]:
        """The state of jobs; Slurm is asked for all of them at once, and every 2 s at most unless ``anew``."""
        now = time.monotonic()
        if anew or now - self._asked_at >= QUERY_PAUSE_S or not self._lines.keys() >= set(ids):
            self._ask(ids, now)
            self._asked_at = now
        return {job: self._seen(job, now) for job in ids}

    def alive(self, ids: Sequence[str]) -> list[str]:
        """Those that still hold or wait for resources."""
        found = self._ask(ids, time.monotonic())
        return [job for job, line in found.items() if line.state not in commands.ENDED]

    def end(self, ids: Sequence[str], how: Ending) -> str:
        """Ask jobs to end, let their agents kill at once, or have Slurm do it after its KillWait (usually 30 s)."""
        if how == "TERM":
            return commands.scancel(ids, "--state=PENDING") + commands.scancel(ids, "--full", "--signal=TERM")
        return commands.scancel(ids, *(("--full", "--signal=USR1") if how == "NOW" else ()))

    def output(self, which: str) -> Path:
        """What a job printed besides its server: the setup lines' output, and a Python that is not there."""
        return self._folder / f"{which}_0_log.out"

    def _parameters(self, key: str, spec: InstanceSpec, exclude: Collection[str]) -> dict[str, Any]:
        options, shape = self._options, spec.shape
        gang = shape.nodes > 1
        further: dict[str, str | bool] = {"no-requeue": True}
        if gang:
            further["signal"] = "TERM@30"  # submitit's own USR2 would end servers without a word
        if options.time is not None:
            further["time"] = options.time
        return {
            "job_name": f"{self._run_name}-{key}",
            "time": None,  # else submitit says 5 minutes
            "wckey": None,
            "nodes": shape.nodes,
            "ntasks_per_node": 1,
            "cpus_per_task": shape.cpus_per_node,
            "gpus_per_node": shape.gpus_per_node or None,
            "mem": None if shape.mem_gb_per_node is None else f"{round(shape.mem_gb_per_node * 1024)}M",
            "partition": options.partition,
            "account": options.account,
            "qos": options.qos,
            "constraint": options.constraint,
            "exclude": ",".join(filter(None, [options.exclude, *sorted(exclude)])) or None,
            "setup": list(options.setup) or None,
            "stderr_to_stdout": True,
            "use_srun": gang,
            "srun_args": ["--kill-on-bad-exit=1", *options.srun_args],
            "additional_parameters": {**further, **options.further()},
        }

    def _ask(self, ids: Sequence[str], now: float) -> dict[str, commands.JobLine]:
        found = commands.squeue(ids)
        self._lines |= found
        self._last_seen |= dict.fromkeys(found, now)
        return found

    def _seen(self, job: str, now: float) -> Seen:
        line = self._lines.get(job)
        forgotten = now - self._last_seen.setdefault(job, now) > FORGOTTEN_S
        if forgotten and (line is None or line.state not in commands.ENDED):
            return Seen("gone", f"Slurm knows no job {job} any more", lost=Lost.UNKNOWN)
        if line is None:
            return Seen("waiting", f"job {job} is not in the queue yet")
        said = f"job {job} {line.state}"
        reason = "" if line.reason == "None" else f" {line.reason}"
        if line.state in commands.ENDED:
            node = "" if {"[", ","} & set(line.nodes) else line.nodes
            return Seen("gone", f"{said}{reason}", lost=commands.ENDED[line.state], node=node)
        if line.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED"):
            never = commands.never(line.reason)
            start = "" if line.start in ("N/A", "") else f", expected to start at {line.start}"
            return Seen("waiting", f"{said}{reason}, {self._free_now(now)}{start}", never=never)
        return Seen("running", f"{said} on {line.nodes}")

    def _free_now(self, now: float) -> str:
        if now - self._free[0] >= FREE_PAUSE_S:
            nodes = self.nodes()
            free, total = sum(node.gpus_free for node in nodes), sum(node.gpus_total for node in nodes)
            self._free = now, f"{self.place} has {free} of {total} GPUs free"
        return self._free[1]


def _needs(shape: Shape) -> str:
    memory = "" if shape.mem_gb_per_node is None else f", {shape.mem_gb_per_node:g} GB"
    each = f" on each of {shape.nodes} nodes" if shape.nodes > 1 else ""
    return f"{counted(shape.gpus_per_node)}, CPUs: {shape.cpus_per_node}{memory}{each}"
