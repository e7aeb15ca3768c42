"""What the fleet knows of one replica, over all of its instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_areal_eval.controller.replicas import Replica
from pytest_areal_eval.engines.base import Endpoint, Launch
from pytest_areal_eval.schedulers.base import Handle, Status


@dataclass(eq=False, slots=True)
class Member:
    """One replica through its lives.

    Attributes:
        name: ``role/0``.
        launch: how to start it; None where its address was given.
        endpoint: where it is, once known.
        handle: its present instance.
        status: what the scheduler said of it last.
        replica: what the client sees of it, while it is ready.
        phase: where it is.
        attempt: which start this is, from 1.
        since: loop time at which the phase's limit began.
        misses: health checks in a row without an answer.
        told: the last line said about it.
        cause: why it was lost last.
    """

    name: str
    launch: Launch | None = None
    endpoint: Endpoint | None = None
    handle: Handle | None = None
    status: Status | None = None
    replica: Replica | None = None
    phase: Literal["waiting", "starting", "ready", "gone"] = "waiting"
    attempt: int = 1
    since: float = 0.0
    misses: int = 0
    told: str = ""
    cause: str = ""


def why_gone(status: Status) -> str:
    if status.never:
        return f"it can never start: {status.reason}"
    ended = f"exited with code {status.exit_code}" if status.exit_code is not None else "is gone"
    why = f"; {status.lost.value}" if status.lost is not None else ""
    return f"{ended}{why}{': ' + status.reason if status.reason else ''}"
