"""What is known of one instance, from the facts that the driver tells of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_areal_eval.schedulers import logs, postmortem
from pytest_areal_eval.schedulers.base import Address, Handle, Lost, Shape, State, Status
from pytest_areal_eval.schedulers.ray.fit import waiting

LOST = {
    "node": Lost.NODE,
    "preempted": Lost.PREEMPTED,
    "cancelled": Lost.CANCELLED,
    "oom": Lost.OOM,
    "killed": Lost.KILLED,
    "failed": Lost.UNKNOWN,
}
"""By the driver's word for it."""


@dataclass
class Instance:
    """One instance, from its placement group to its end.

    Attributes:
        handle: what callers have.
        shape: what it needs.
        nonce: what its server is to repeat.
        log: where its log is copied to.
        secrets: what that must not show.
        started: when it was asked for, by the monotonic clock.
        final: how it ended.
    """

    handle: Handle
    shape: Shape
    nonce: str
    log: str
    secrets: tuple[str, ...]
    started: float
    final: Status | None = None

    def status(self, facts: Mapping[str, Any] | None, device: str, nodes: Sequence[Mapping[str, Any]]) -> Status:
        """Where it is.

        Args:
            facts: what the driver says of it, if it was asked.
            device: the kind of accelerator that it waits for.
            nodes: the cluster's, where it waits.
        """
        if self.final is None and facts is not None and "end" in facts:
            self.final = self._ended(facts)
        if self.final is not None or facts is None:
            return self.final or Status(State.WAITING, "Ray has not told yet")
        if facts["state"] == "waiting":
            return Status(State.WAITING, waiting(self.shape, facts["placement"], device, nodes))
        if facts["state"] == "starting":
            return Status(State.STARTING, "its node starts a Python process for it")
        return Status(State.UP, address=self._where(facts))

    def stopped(self, before: Mapping[str, Any]) -> None:
        """It was told to end; it may have ended by itself, by what was known of it before."""
        reason = f"stopped after {time.monotonic() - self.started:.1f} s"
        cancelled = Status(State.GONE, reason, address=self._where(before), lost=Lost.CANCELLED)
        self.final = self._ended(before) if "end" in before else cancelled

    def _ended(self, facts: Mapping[str, Any]) -> Status:
        end, address = facts["end"], self._where(facts)
        if "code" not in end:
            return Status(State.GONE, end["text"], address=address, lost=LOST[end["kind"]])
        text = logs.tail(self.log + (f".{end['rank']}" if end["rank"] else ""), 50, self.secrets)
        lost, code, reason = postmortem.explain(end["code"], text, seconds=end["seconds"], oom=end["oom"])
        reason = f"rank {end['rank']}: {reason}" if self.shape.nodes > 1 else reason
        where = facts["places"][end["rank"]]["name"]
        return Status(State.GONE, reason, address=address, lost=lost, exit_code=code, node=where)

    def _where(self, facts: Mapping[str, Any]) -> Address | None:
        places = facts.get("places")
        if not places:
            return None
        return Address(
            places[0]["host"],
            places[0]["port"],
            self.nonce,
            self.log,
            nodes=tuple(place["name"] for place in places),
            gpus=tuple(tuple(place["devices"]) for place in places),
        )
