"""The seam between the scheduler and the two ways of running something: jobs of their own, steps of one job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pytest_areal_eval.schedulers.base import InstanceSpec, Lost, NodeFree

Ending = Literal["TERM", "NOW", "CANCEL"]


@dataclass(frozen=True)
class Seen:
    """What Slurm says of one instance.

    Attributes:
        state: where it is.
        reason: for a person.
        never: it will never run.
        lost: why it is gone.
        node: where it was, if that was one node.
    """

    state: Literal["waiting", "running", "gone"]
    reason: str
    never: bool = False
    lost: Lost | None = None
    node: str = ""


class Launcher(Protocol):
    """Starts agents on nodes; an id names what one instance runs in."""

    own_jobs: bool

    @property
    def place(self) -> str:
        """What the nodes belong to, for messages."""
        ...

    def nodes(self) -> list[NodeFree]:
        """The nodes that there are."""
        ...

    def submit(self, key: str, spec: InstanceSpec, agent: list[str], exclude: Collection[str]) -> str:
        """Queue Python with these arguments on each node of an instance; returns its id at once."""
        ...

    def look(self, ids: Sequence[str], *, anew: bool) -> dict[str, Seen]:
        """Where they are; ``anew`` where an agent has told more than was known so far."""
        ...

    def alive(self, ids: Sequence[str]) -> list[str]:
        """Those that still hold or wait for resources."""
        ...

    def end(self, ids: Sequence[str], how: Ending) -> str:
        """Ask them to end (TERM), have their agents kill at once (NOW) or Slurm (CANCEL); returns complaints."""
        ...

    def output(self, which: str) -> Path:
        """What was printed around the server."""
        ...
