"""What the fleet knows of one replica, over all of its instances."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from pytest_areal_eval.controller.replicas import Replica
from pytest_areal_eval.engines.base import Endpoint, Launch
from pytest_areal_eval.schedulers.base import Handle, Lost, Status

TAKEN_AWAY = frozenset({Lost.PREEMPTED, Lost.TIME_LIMIT})
"""A server that worked until then is owed another start."""
NO_FAULT_OF_THE_NODE = frozenset({Lost.CANCELLED, Lost.PREEMPTED, Lost.TIME_LIMIT})


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
        owed: starts beyond the settings' restarts: a scheduler took a working server away, or somebody else starts it
            and needs a moment to see that it is lost.
        since: loop time at which the phase's limit began.
        misses: health checks in a row without an answer.
        told: the last line said about it.
        cause: why it was lost last.
        ending: the end of the instance before, once begun.
    """

    name: str
    launch: Launch | None = None
    endpoint: Endpoint | None = None
    handle: Handle | None = None
    status: Status | None = None
    replica: Replica | None = None
    phase: Literal["waiting", "starting", "ready", "gone"] = "waiting"
    attempt: int = 1
    owed: int = 0
    since: float = 0.0
    misses: int = 0
    told: str = ""
    cause: str = ""
    ending: asyncio.Task[None] | None = None


def why_gone(status: Status) -> str:
    """The scheduler's own words where it has some."""
    if status.never:
        return f"it can never start: {status.reason}"
    if status.reason:
        return status.reason
    if status.lost is not None and status.lost is not Lost.EXITED:
        return str(status.lost.value)
    return "is gone" if status.exit_code is None else f"exited with code {status.exit_code}"


def failed_node(status: Status | None) -> str | None:
    """The node to blame for a loss; None where the loss says nothing about it, or which of several it was."""
    if status is None or status.lost in NO_FAULT_OF_THE_NODE:
        return None
    nodes = status.address.nodes if status.address is not None else ()
    return status.node or (nodes[0] if len(nodes) == 1 else None)
