"""AReaL's ``scheduling_spec`` and ``cluster.slurm``: what becomes an option, and what is told to mean nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_areal_eval.backends.assembly import build_controller, idle_options, slurm_options
from pytest_areal_eval.controller.settings import Needs
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.declarations import OPTIONS
from pytest_areal_eval.options.settings import Settings
from pytest_areal_eval.schedulers.areal import SchedulingSpec, SlurmSection, options_of, unused

STOCK = SchedulingSpec(
    cpu=8,
    gpu=1,
    mem=32,
    port_count=2,
    srun_additional_args="--unbuffered --mpi=pmi2 -K --chdir $PWD",
    container_type="apptainer",
    mount="/storage:/storage",
)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (SchedulingSpec(), {}),
        (STOCK, {"server-cpus": 8, "server-mem": 32}),
        (SchedulingSpec(env_vars={"A": "1", "B": "x=y"}), {"server-env": ["A=1", "B=x=y"]}),
        (
            SchedulingSpec(nodelist="n[1-2]", reservation="r"),
            {"slurm-sbatch-arg": ["nodelist=n[1-2]", "reservation=r"]},
        ),
        (SchedulingSpec(exclude="n3"), {"slurm-exclude": "n3"}),
        (SchedulingSpec(additional_bash_cmds=["module load cuda"]), {"slurm-setup": ["module load cuda"]}),
        (
            SchedulingSpec(srun_additional_args="--unbuffered -K --cpu-bind='a b'"),
            {"slurm-srun-args": "'--cpu-bind=a b'"},
        ),
        (SchedulingSpec(image="/i.sif"), {"slurm-prefix": "apptainer exec --nv /i.sif"}),
        (
            SchedulingSpec(image="/i.sif", mount="/a b:/c", container_type="apptainer"),
            {"slurm-prefix": "apptainer exec --nv --bind '/a b:/c' /i.sif"},
        ),
        (SchedulingSpec(image="/i.sif", container_type="none"), {}),
    ],
)
def test_what_means_something_becomes_an_option(spec: SchedulingSpec, options: dict[str, Any]) -> None:
    assert options_of(spec) == options
    assert options.keys() <= {option.name for option in OPTIONS}


def test_what_the_cluster_section_says_comes_first_or_wins() -> None:
    spec = SchedulingSpec(exclude="n3", additional_bash_cmds=["b"], nodelist="n1", image="/i.sif")
    slurm = SlurmSection(
        partition="gpu",
        account="a",
        qos="q",
        time="4:00:00",
        constraint="h100",
        exclude="n2",
        sbatch_args=["comment=eval"],
        srun_args="--mpi=none",
        setup=["a"],
        prefix="env X=1",
    )
    assert options_of(spec, slurm) == {
        "slurm-partition": "gpu",
        "slurm-account": "a",
        "slurm-qos": "q",
        "slurm-time": "4:00:00",
        "slurm-constraint": "h100",
        "slurm-exclude": "n2,n3",
        "slurm-sbatch-arg": ["comment=eval", "nodelist=n1"],
        "slurm-srun-args": "--mpi=none",
        "slurm-setup": ["a", "b"],
        "slurm-prefix": "env X=1",
    }


@pytest.mark.parametrize("scheduler", ["local", "ray", "slurm"])
def test_areals_own_values_are_nothing_to_complain_about(scheduler: str) -> None:
    assert unused(SchedulingSpec(), scheduler) == []
    assert unused(replace(STOCK, image="areal.sif") if scheduler == "slurm" else STOCK, scheduler) == []


@pytest.mark.parametrize(
    ("spec", "scheduler", "says"),
    [
        (SchedulingSpec(gpu=4), "slurm", "gpu: a replica's GPUs follow from its allocation"),
        (SchedulingSpec(port_count=9), "ray", "port_count: a node picks as many ports as its server needs"),
        (SchedulingSpec(exclusive=True), "slurm", "exclusive: replicas share a node"),
        (SchedulingSpec(cpu=16, mem=64), "local", "cpu, mem: nothing is reserved on this machine"),
        (SchedulingSpec(nodelist="a", exclude="b"), "ray", "nodelist, exclude: only for Slurm"),
        (SchedulingSpec(srun_additional_args="--mpi=pmix"), "local", "srun_additional_args: only for Slurm"),
        (
            SchedulingSpec(image="i", container_type="apptainer", mount="m"),
            "ray",
            "image, container_type, mount: only for Slurm",
        ),
        (
            SchedulingSpec(image="i", container_type="docker"),
            "slurm",
            "container_type: docker is neither apptainer nor none; --slurm-prefix takes any",
        ),
    ],
)
def test_what_means_nothing_is_told_with_the_reason(spec: SchedulingSpec, scheduler: str, says: str) -> None:
    assert unused(spec, scheduler) == [says]


def test_servers_limits_and_needs_reach_the_controller(tmp_path: Path) -> None:
    recorded = tmp_path / "r.jsonl"
    recorded.write_text('{"id": "a", "completion": "b"}\n')
    given = {"replay": str(recorded), "queue-timeout": 60.0, "server-env": ["A=x=y"], "server-cpus": 4, "server-mem": 9}
    for scheduler in ("ray", "slurm"):
        settings = build_controller(Settings({**given, "scheduler": scheduler}), None, None).settings
        assert settings.queue_timeout_s == 60.0
        assert settings.needs == Needs(env={"A": "x=y"}, cpus_per_gpu=4, mem_gb_per_gpu=9)
    assert build_controller(Settings(given), None, None).settings.needs == Needs(
        env={"A": "x=y"}
    )  # local: all is shared
    assert build_controller(Settings({"replay": str(recorded)}), None, None).settings.queue_timeout_s == 86_400


def test_words_are_split_as_a_shell_does() -> None:
    options = slurm_options(Settings({"slurm-prefix": "apptainer exec '/my image.sif'", "slurm-srun-args": "-K -v"}))
    assert (options.prefix, options.srun_args) == (("apptainer", "exec", "/my image.sif"), ("-K", "-v"))
    with pytest.raises(ConfigError, match="--slurm-prefix=it's: No closing quotation\nWrite it as in a shell"):
        slurm_options(Settings({"slurm-prefix": "it's"}))


def test_what_is_typed_for_another_scheduler_is_told() -> None:
    """What an ini file says may be meant for other runs."""
    typed = {"slurm-time": "10", "shared-dir": "/d", "ray-address": "h:1", "server-cpus": 2}
    said = [idle_options(Settings({**typed, "scheduler": name})) for name in ("local", "ray", "slurm")]
    assert said[0] == "--slurm-time, --shared-dir, --ray-address, --server-cpus: nothing to the local scheduler"
    assert said[1] == "--slurm-time, --shared-dir: nothing to the ray scheduler"
    assert said[2] == "--ray-address: nothing to the slurm scheduler"
    assert idle_options(Settings(ini=typed)) == ""
