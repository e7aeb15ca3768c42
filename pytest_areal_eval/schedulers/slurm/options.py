"""What a person says about a cluster, and the first look whether it can be used at all."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_areal_eval.errors import ConfigError

PROGRAMS = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """How jobs are submitted.  What is None is left to the cluster.

    Attributes:
        partition: where; more than one, separated by commas, means whichever is free first.
        account: who pays.
        qos: quality of service.
        time: limit of one job, as sbatch takes it: minutes, ``4:00:00``, ``1-12``.
        constraint: features that nodes must have.
        exclude: nodes not to be used, ``node[1-3]``.
        sbatch_args: further arguments, ``--reservation=eval`` or ``reservation=eval``; they win over all others.
        setup: shell lines that each job runs first, ``module load cuda``.
        srun_args: words for srun where one starts a server: steps of an allocation, replicas over several nodes.
        prefix: words before each server's command, such as a container's.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    sbatch_args: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()

    def given(self) -> list[str]:
        """What decides whether Slurm takes a job, as it was typed."""
        chosen = {
            name: getattr(self, name) for name in ("partition", "account", "qos", "time", "constraint", "exclude")
        }
        typed = [f"--slurm-{name}={value}" for name, value in chosen.items() if value is not None]
        return [*typed, *(f"--slurm-sbatch-arg={argument}" for argument in self.sbatch_args)]

    def further(self) -> Mapping[str, str | bool]:
        """``sbatch_args`` by name.

        Raises:
            ConfigError: one of them has no name.
        """
        found: dict[str, str | bool] = {}
        for argument in self.sbatch_args:
            name, equals, value = argument.lstrip("-").partition("=")
            if not name or name != name.strip() or (argument.startswith("-") and not argument.startswith("--")):
                raise ConfigError(
                    f"--slurm-sbatch-arg={argument}: not the long form of an option of sbatch",
                    "Give each as --slurm-sbatch-arg=NAME=VALUE, such as --slurm-sbatch-arg=reservation=eval.",
                )
            found[name] = value if equals else True
        return found


def check_installed() -> None:
    """Find out whether this machine can talk to Slurm.

    Raises:
        ConfigError: submitit or one of Slurm's programs is missing.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise ConfigError(
            f"--scheduler=slurm: no {missing[0]} on PATH; this machine cannot submit to Slurm",
            "Run pytest on a login node of the cluster, or use --scheduler=local or --scheduler=ray.",
        )
    if importlib.util.find_spec("submitit") is None:
        raise ConfigError(
            "--scheduler=slurm: submitit is not installed in this environment",
            "Install it: pip install 'pytest-areal-eval[slurm]'",
        )
