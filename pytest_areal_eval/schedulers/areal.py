"""AReaL's ``scheduling_spec`` and this package's ``cluster.slurm`` as options of the schedulers.

What a server is asked for follows from the allocation here, so some of AReaL's keys mean nothing; those are told.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SRUN_DEFAULTS = frozenset(("--unbuffered", "--mpi=pmi2", "-K", "--chdir", "$PWD"))
"""Words of AReaL's own default, which serve its launcher."""
USUAL = {"cpu": 8, "gpu": 1, "mem": 32, "port_count": 2}
"""What its own files say; only what goes beyond is worth a remark."""
SLURM_ONLY = (
    "nodelist",
    "exclude",
    "reservation",
    "additional_bash_cmds",
    "srun_additional_args",
    "image",
    "container_type",
    "mount",
)


@dataclass(frozen=True)
class SchedulingSpec:
    """What AReaL asks for one worker; None where nobody said anything.

    Attributes:
        cpu: CPUs for each GPU.
        gpu: GPUs of a worker; here they follow from the allocation.
        mem: GB of memory for each GPU.
        port_count: ports of a worker; here a node picks as many as a server needs.
        env_vars: variables of the servers' environment.
        nodelist: nodes to be used.
        exclude: nodes not to be used.
        reservation: Slurm's reservation.
        additional_bash_cmds: shell lines before a server's command.
        srun_additional_args: words for srun.
        container_type: ``apptainer`` or ``none``.
        image: the container's image.
        mount: what it sees of the node, ``/storage:/storage``.
        exclusive: whole nodes; here replicas share one.
    """

    cpu: int | None = None
    gpu: int | None = None
    mem: int | None = None
    port_count: int | None = None
    env_vars: dict[str, str] = field(default_factory=dict)
    nodelist: str | None = None
    exclude: str | None = None
    reservation: str | None = None
    additional_bash_cmds: list[str] | None = None
    srun_additional_args: str | None = None
    container_type: str | None = None
    image: str | None = None
    mount: str | None = None
    exclusive: bool | None = None


@dataclass(frozen=True)
class SlurmSection:
    """``cluster.slurm``: the ``--slurm-*`` options in a configuration."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    sbatch_args: list[str] | None = None
    srun_args: str | None = None
    setup: list[str] | None = None
    prefix: str | None = None


def options_of(spec: SchedulingSpec, slurm: SlurmSection | None = None) -> dict[str, Any]:
    """The options that they set, by name; where both say something, ``cluster.slurm`` comes first or wins."""
    slurm = slurm or SlurmSection()
    named = {"nodelist": spec.nodelist, "reservation": spec.reservation}
    found: Mapping[str, Any] = {
        "server-cpus": spec.cpu,
        "server-mem": spec.mem,
        "server-env": [f"{name}={value}" for name, value in spec.env_vars.items()],
        "slurm-partition": slurm.partition,
        "slurm-account": slurm.account,
        "slurm-qos": slurm.qos,
        "slurm-time": slurm.time,
        "slurm-constraint": slurm.constraint,
        "slurm-exclude": ",".join(filter(None, (slurm.exclude, spec.exclude))),
        "slurm-sbatch-arg": [
            *(slurm.sbatch_args or ()),
            *(f"{name}={value}" for name, value in named.items() if value),
        ],
        "slurm-srun-args": shlex.join([*shlex.split(slurm.srun_args or ""), *_srun_words(spec)]),
        "slurm-setup": [*(slurm.setup or ()), *(spec.additional_bash_cmds or ())],
        "slurm-prefix": slurm.prefix or shlex.join(_container(spec)),
    }
    return {name: value for name, value in found.items() if value}


def unused(spec: SchedulingSpec, scheduler: str) -> list[str]:
    """The keys that were given and mean nothing under a scheduler, each with the reason.

    Args:
        spec: what was given.
        scheduler: ``local``, ``ray`` or ``slurm``.
    """
    return list(_unused(spec, scheduler))


def _unused(spec: SchedulingSpec, scheduler: str) -> Iterator[str]:
    beyond = [name for name, usual in USUAL.items() if (getattr(spec, name) or 0) > usual]
    if "gpu" in beyond:
        yield "gpu: a replica's GPUs follow from its allocation"
    if "port_count" in beyond:
        yield "port_count: a node picks as many ports as its server needs"
    if spec.exclusive:
        yield "exclusive: replicas share a node"
    if scheduler != "slurm":
        given = [name for name in SLURM_ONLY if _says(spec, name)]
        if given:
            yield f"{', '.join(given)}: only for Slurm"
    elif spec.container_type not in (None, "none", "apptainer"):
        yield f"container_type: {spec.container_type} is neither apptainer nor none; --slurm-prefix takes any"
    elif spec.mount and not spec.image:
        yield "mount: there is no image"
    if scheduler == "local":
        given = [name for name in ("cpu", "mem") if name in beyond]
        if given:
            yield f"{', '.join(given)}: nothing is reserved on this machine"


def _says(spec: SchedulingSpec, name: str) -> bool:
    if name == "srun_additional_args":
        return bool(_srun_words(spec))
    if name in ("container_type", "mount"):
        return bool(spec.image) and bool(getattr(spec, name))
    return bool(getattr(spec, name))


def _srun_words(spec: SchedulingSpec) -> Sequence[str]:
    return [word for word in shlex.split(spec.srun_additional_args or "") if word not in SRUN_DEFAULTS]


def _container(spec: SchedulingSpec) -> Sequence[str]:
    if not spec.image or spec.container_type not in (None, "apptainer"):
        return ()
    binds = ("--bind", spec.mount) if spec.mount else ()
    return ("apptainer", "exec", "--nv", *binds, spec.image)
