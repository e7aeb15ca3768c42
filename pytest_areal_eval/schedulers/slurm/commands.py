"""Slurm's own programs: each call has a limit, and what they print becomes values.

Invariant: nothing here needs Slurm's accounting database.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_areal_eval.errors import ConfigError, SchedulerError
from pytest_areal_eval.programs import ask
from pytest_areal_eval.schedulers.base import Lost, NodeFree

LIMIT_S = 10.0

ENDED = {
    "COMPLETED": Lost.EXITED,
    "FAILED": Lost.EXITED,
    "OUT_OF_MEMORY": Lost.OOM,
    "CANCELLED": Lost.CANCELLED,
    "REVOKED": Lost.CANCELLED,
    "TIMEOUT": Lost.TIME_LIMIT,
    "DEADLINE": Lost.TIME_LIMIT,
    "PREEMPTED": Lost.PREEMPTED,
    "NODE_FAIL": Lost.NODE,
    "BOOT_FAIL": Lost.NODE,
}
"""States from which a job does not come back, as ``--no-requeue`` keeps it from being queued again."""

NEVER = frozenset(
    {
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "DependencyNeverSatisfied",
        "JobHeldAdmin",
        "JobHeldUser",
        "ReservationDeleted",
    }
)
"""Reasons of a pending job that time alone does not end (squeue(1), JOB REASON CODES)."""

_NEVER_ALONE = re.compile(r"(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?|QOSMin\w+")
"""Limits on one job: ``QOSMaxGRESPerJob``, but not ``QOSMaxGRESPerUser``, which others' end relieves."""

_UNUSABLE = re.compile(r"down|drain|fail|maint|unknown|error|\*", re.IGNORECASE)
_PARTS = re.compile(r"^ +Nodes=(\S+)(?: CPU_IDs=(\S+))?(?: Mem=(\d+))?(?: GRES=(\S*))?", re.MULTILINE)
_GPUS = re.compile(r"\bgpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True)
class JobLine:
    """A job as squeue shows it.

    Attributes:
        state: ``PENDING``, ``RUNNING``, ...
        reason: why it is not further.
        nodes: where it runs, ``node[1-2]``.
        start: when it is expected to start, or did; ``N/A`` where nobody knows.
    """

    state: str
    reason: str
    nodes: str
    start: str


def run(*argv: str) -> str:
    """Run one program.

    Raises:
        SchedulerError: it is not there, gave no answer within 10 s, or failed; the message has its own words.
    """
    command = " ".join(argv)
    try:
        done = ask(argv, LIMIT_S)
    except FileNotFoundError:
        raise SchedulerError(f"{argv[0]} is not on PATH.") from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(
            f"{_cut(command)} gave no answer in {LIMIT_S:g} s.", "Is Slurm up? scontrol ping"
        ) from None
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or "no message"
        raise SchedulerError(f"{_cut(command)} failed ({done.returncode}): {said}", "Is Slurm up? scontrol ping")
    return done.stdout


def never(reason: str) -> bool:
    """Whether a job that is pending for this reason stays so."""
    return reason in NEVER or _NEVER_ALONE.fullmatch(reason) is not None


def squeue(ids: Sequence[str]) -> dict[str, JobLine]:
    """The state of jobs, in one query; those that Slurm has forgotten are absent."""
    if not ids:
        return {}
    try:
        text = run("squeue", "-h", "-t", "all", "-j", ",".join(ids), "-o", "%i|%T|%N|%S|%r")
    except SchedulerError as error:
        if "Invalid job id" in str(error):  # said only where a single one is asked for
            return {}
        raise
    rows = (line.split("|", 4) for line in text.splitlines())
    return {row[0]: JobLine(state=row[1], nodes=row[2], start=row[3], reason=row[4]) for row in rows}


def nodes_of(partition: str | None) -> list[NodeFree]:
    """The nodes of a partition (of several, or of the default one) with their GPUs, CPUs and memory.

    Raises:
        ConfigError: there is no such partition.
    """
    columns = ("Partition", "NodeHost", "StateLong", "Gres", "GresUsed", "CPUsState", "OverSubscribe", "Memory")
    text = run("sinfo", "-h", "-N", "-O", ",".join(f"{column}:|" for column in columns))
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    there = {row[0].rstrip("*") for row in rows}
    wanted = set(partition.split(",")) if partition else {row[0].rstrip("*") for row in rows if row[0].endswith("*")}
    if wanted - there:
        unknown = ", ".join(sorted(wanted - there))
        raise ConfigError(
            f"--slurm-partition={partition}: this cluster has no partition {unknown}",
            f"There are: {', '.join(sorted(there))}.",
        )
    if not wanted:
        raise ConfigError(
            "This cluster has no default partition.",
            f"Name one: --slurm-partition=NAME with one of {', '.join(sorted(there))}.",
        )
    memory = "_MEMORY" in run("scontrol", "show", "config").upper()  # CR_CPU_Memory: else jobs share all of it
    found = {row[1]: _node(*row[1:8]) for row in rows if row[0].rstrip("*") in wanted}
    return [node if memory else replace(node, mem_gb_total=None) for node in found.values()]


def gpus_in(gres: str) -> int:
    """``gpu:h100:4(S:0-1),gpu:a100:2`` is 6; ``(null)`` is 0."""
    return sum(int(count) for count in _GPUS.findall(re.sub(r"\([^)]*\)", "", gres)))


def parts_in(job: str) -> list[NodeFree]:
    """An allocation's part of each of its nodes, as ``scontrol show job -d`` prints it; a name may be ``node[1-2]``."""
    found = []
    for name, cpus, memory_mb, gres in _PARTS.findall(job):
        mem_gb = int(memory_mb) / 1024 if int(memory_mb or 0) else None  # 0 where Slurm does not count it
        cpus_total = _count(cpus) if cpus[:1].isdecimal() else None
        found.append(NodeFree(name, gpus_in(gres), gpus_free=0, cpus_total=cpus_total, mem_gb_total=mem_gb))
    return found


def hostnames(nodes: str) -> list[str]:
    """``node[1-2]`` is node1 and node2."""
    return run("scontrol", "show", "hostnames", nodes).split()


def scancel(ids: Sequence[str], *options: str) -> str:
    """Signal or cancel jobs; returns what scancel complained about, such as a job that has just ended."""
    try:
        run("scancel", *options, *ids)
    except SchedulerError as error:
        return str(error)
    return ""


def _count(ids: str) -> int:
    """``0-2,8`` is 4."""
    ends = [part.partition("-") for part in ids.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _node(name: str, state: str, gres: str, used: str, cpus: str, oversubscribe: str, memory_mb: str) -> NodeFree:
    total, usable = gpus_in(gres), not _UNUSABLE.search(state)
    _, idle, _, all_cpus = (int(count) for count in cpus.split("/"))  # allocated/idle/other/total
    share = oversubscribe.partition(":")[2]  # FORCE:4
    return NodeFree(
        name,
        gpus_total=total,
        gpus_free=max(0, total - gpus_in(used)) if usable else 0,
        usable=usable,
        why_not="" if usable else state,
        cpus_total=all_cpus,
        cpus_free=idle if usable else 0,
        cpu_share=int(share) if share else 1,
        mem_gb_total=int(memory_mb) / 1024,
    )


def _cut(command: str) -> str:
    return command if len(command) <= 200 else command[:200] + "…"
