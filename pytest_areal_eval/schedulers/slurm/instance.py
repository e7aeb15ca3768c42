"""What became of one instance: its agents' files say how it ended by itself, Slurm that it was taken away."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_areal_eval.schedulers import logs, postmortem
from pytest_areal_eval.schedulers.base import Address, Handle, InstanceSpec, Lost, State, Status
from pytest_areal_eval.schedulers.rendezvous import Event, Rendezvous
from pytest_areal_eval.schedulers.slurm.launcher import Launcher, Seen


@dataclass
class Instance:
    """One instance, from its submission to its end.

    Attributes:
        handle: what callers have.
        key: its name in the shared folder.
        nonce: what its server is to repeat.
        spec: what was asked for.
        started: when it was submitted, by the monotonic clock.
        stopped: it was told to end.
        address: where it listens, once known.
        final: how it ended.
    """

    handle: Handle
    key: str
    nonce: str
    spec: InstanceSpec
    started: float
    stopped: bool = False
    address: Address | None = None
    final: Status | None = None

    @property
    def gpus(self) -> int:
        """On all of its nodes."""
        return self.spec.shape.nodes * self.spec.shape.gpus_per_node

    def gone(self, lost: Lost, reason: str, code: int | None = None, node: str = "") -> Status:
        """The status of its end."""
        return Status(State.GONE, reason, address=self.address, lost=lost, exit_code=code, node=node)


def learn(instance: Instance, seen: Seen, events: Sequence[Event], shared: Rendezvous, launcher: Launcher) -> None:
    """Add what is new of an instance.

    Args:
        instance: has not ended yet, as far as was known.
        seen: what Slurm says of it.
        events: what its agents have written.
        shared: the folder with its logs.
        launcher: what started its agents.
    """
    instance.address = shared.address(instance.key, instance.nonce, events) or instance.address
    ends = [event for event in events if event.kind == "end" and event.facts["why"] != "asked"]
    if instance.stopped and seen.state == "gone":
        instance.final = instance.gone(Lost.CANCELLED, f"stopped after {time.monotonic() - instance.started:.1f} s")
    elif ends and not instance.stopped:
        instance.final = _ended(instance, min(ends, key=lambda end: end.facts["at"]), shared)
    elif seen.state == "gone":
        instance.final = _taken(instance, seen, shared, launcher, heard=bool(events))


def _ended(instance: Instance, end: Event, shared: Rendezvous) -> Status:
    """By itself, as its agent says."""
    facts = end.facts
    if facts["why"] == "failed":
        return instance.gone(Lost.EXITED, f"{end.node}: {facts['error']}", 1, end.node)
    if facts["why"] == "lease":
        why = f"{end.node} saw the lease stand still; is the shared folder slow, or was this process stopped?"
        return instance.gone(Lost.CANCELLED, why)
    tail = logs.tail(shared.log(instance.key, end.rank), 20, logs.secrets_of(instance.spec.env))
    lost, code, reason = postmortem.explain(facts["code"], tail, seconds=facts["seconds"], oom=facts["oom"])
    where = f"rank {end.rank} on {end.node} " if instance.spec.shape.nodes > 1 else ""
    return instance.gone(lost, where + reason, code, end.node)


def _taken(instance: Instance, seen: Seen, shared: Rendezvous, launcher: Launcher, *, heard: bool) -> Status:
    """By Slurm, or before its agent could say anything."""
    if heard or seen.lost is not Lost.EXITED:
        return instance.gone(seen.lost or Lost.UNKNOWN, seen.reason, node=seen.node)
    output = launcher.output(instance.handle.id)
    if output.exists():
        lines = [line for line in logs.tail(str(output), 5).splitlines() if not line.startswith("supervise: the ")]
        said = lines[-1].strip() if lines else "nothing"
        why = f"{seen.reason} before its server was started; it said: {said}"
        return replace(instance.gone(Lost.EXITED, why, node=seen.node), never=seen.never)
    why = f"{seen.reason} and wrote nothing into {shared.folder}: do nodes see it? --shared-dir=DIR"
    return replace(instance.gone(Lost.EXITED, why), never=True)
