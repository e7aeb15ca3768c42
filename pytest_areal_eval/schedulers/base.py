"""The scheduler's interface: it starts, watches and stops processes, and knows no model and no pytest.

Invariant: every call returns within ten seconds or raises; waiting, health over HTTP and restarts live in the
controller's fleet.  An argv and an environment may hold the placeholders ``{host}``, ``{port}`` and ``{nonce}``,
which the scheduler fills where the process will run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL, at most."""
LEASE_S = 120.0
"""How long a server on another machine lives on when it hears nothing of the process that controls it."""


@dataclass(frozen=True)
class Shape:
    """What one instance needs."""

    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_node: int = 1
    mem_gb_per_node: float | None = None


@dataclass(frozen=True)
class InstanceSpec:
    """One server to run: ``argv`` with placeholders, its environment on top of the inherited one, its needs.

    ``followers`` is added to ``argv`` on each of several nodes but the first.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    shape: Shape = field(default_factory=Shape)
    ready_path: str = "/health"
    start_timeout_s: float = 600.0
    followers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Handle:
    """A started instance.  ``id`` is what a person pastes into a shell: a pid, an actor's id, a job id."""

    name: str
    attempt: int
    id: str


class State(Enum):
    """Where an instance is.  UP means that its address is known; *ready* is decided over HTTP, by the fleet."""

    WAITING = "waiting"
    STARTING = "starting"
    UP = "up"
    GONE = "gone"


class Lost(Enum):
    """Why an instance is gone."""

    EXITED = "exited"
    KILLED = "killed"
    OOM = "out of memory"
    NODE = "node lost"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Address:
    """Where an instance listens."""

    host: str
    port: int
    nonce: str
    log_path: str
    nodes: tuple[str, ...] = ()
    gpus: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Status:
    """What is known of an instance now.

    Attributes:
        state: where it is.
        reason: why it waits or is gone, for a person.
        never: it can never start as asked.
        address: set from UP on.
        lost: why it is gone.
        exit_code: the process's status where it exited (negative: a signal).
        node: where it was lost, if that is known and its address does not say it alone.
    """

    state: State
    reason: str = ""
    never: bool = False
    address: Address | None = None
    lost: Lost | None = None
    exit_code: int | None = None
    node: str = ""


@dataclass(frozen=True)
class NodeFree:
    """One machine: what it has, and what is free now.  None is what its scheduler does not count.

    Attributes:
        name: the scheduler's own.
        gpus_total: its GPUs.
        gpus_free: those that nobody has, as far as is known.
        usable: whether instances start there.
        why_not: why not, for a person.
        cpus_total: its CPUs.
        cpus_free: those that nobody has.
        cpu_share: how many instances one CPU may be given to at once.
        mem_gb_total: its memory.
    """

    name: str
    gpus_total: int
    gpus_free: int
    usable: bool = True
    why_not: str = ""
    cpus_total: int | None = None
    cpus_free: int | None = None
    cpu_share: int = 1
    mem_gb_total: float | None = None


@dataclass(frozen=True)
class Capacity:
    """What a scheduler could give."""

    nodes: tuple[NodeFree, ...]
    elastic: bool = False


class Scheduler(Protocol):
    """Starts, watches and stops instances."""

    name: str

    def capacity(self) -> Capacity:
        """What there is, free or not."""
        ...

    def start(self, spec: InstanceSpec, exclude: Collection[str] = ()) -> Handle:
        """Queue an instance and return at once; raises :class:`~pytest_areal_eval.errors.CannotFit` if it never can."""
        ...

    def poll(self, handles: Sequence[Handle]) -> dict[Handle, Status]:
        """State of all of them in one query; a broken instance is a Status, never an exception."""
        ...

    def stop(self, handles: Sequence[Handle], grace_s: float = 10.0) -> None:
        """End them and all that they started; their resources are free on return.  Idempotent."""
        ...

    def log_tail(self, handle: Handle, lines: int = 50) -> str:
        """The end of an instance's own log."""
        ...

    def log_path(self, handle: Handle) -> str:
        """Where that log is."""
        ...

    def close(self) -> None:
        """Stop everything that this scheduler started.  A second call does nothing."""
        ...
