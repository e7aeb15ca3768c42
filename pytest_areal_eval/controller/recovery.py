"""What follows when a replica is lost: why is told, its instance is ended, and it is started again or given up.

Invariant: a replica is started again ``restarts`` times at most, not counted what a scheduler takes away for others,
and never while an earlier instance of it may still answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass

from pytest_areal_eval.controller.means import Means
from pytest_areal_eval.controller.member import TAKEN_AWAY, Member, failed_node
from pytest_areal_eval.engines.base import Endpoint
from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.schedulers.base import Handle, Lost, State

QUICK_S = 10.0
"""A start that ends sooner, with an exit code that another quick end had, is not tried again."""
USAGE_EXIT = 2
"""What argparse ends with: an unknown flag stays unknown, however long the imports before it took."""
NEVER_EXIT = 78
"""EX_CONFIG of sysexits.h: the server says itself that no further start can help."""
QUIET_S = 1.0
"""An end that takes longer is worth a line."""


@dataclass(frozen=True)
class Loss:
    """How a replica was lost.

    Attributes:
        why: for a person.
        exit_code: its process's, where it exited.
        again: another start may help.
        refused: nothing listens at its address any more, and its scheduler does not know why.
    """

    why: str
    exit_code: int | None = None
    again: bool = True
    refused: bool = False


class Recovery:
    """Starts instances, ends those of lost replicas in the background, and decides whether another is started.

    Args:
        means: what the fleet works with.

    Attributes:
        lost: how many replicas were lost after they had been ready.
        starts: how many instances were started.
    """

    def __init__(self, means: Means) -> None:
        self._means = means
        self._quick_exits: set[int] = set()
        self._stops: set[asyncio.Task[None]] = set()
        self.lost = self.starts = 0

    async def start(self, member: Member, avoid: Collection[str] = ()) -> None:
        """Queue it, on other nodes than ``avoid``; the scheduler's own errors are raised."""
        member.phase, member.misses, member.since, member.status = "waiting", 0, now(), None
        if self._means.instances is not None and member.launch is not None:
            member.handle = await self._means.instances.start(member.name, member.launch, avoid)
            self.starts += 1

    async def lose(self, member: Member, loss: Loss) -> None:
        """Take its requests elsewhere, say why, end its instance, and start another or give it up."""
        was_ready, quick = member.replica is not None, now() - member.since < QUICK_S
        if member.replica is not None:
            self.lost += 1
            self._means.replicas.remove(member.replica)
            member.replica = None
            member.owed += member.status is not None and member.status.lost in TAKEN_AWAY
        given = member.launch is None
        how = "was lost" if was_ready else "cannot be used" if given else "did not start"
        self._means.emit("lost", f"{member.name} {how}: {loss.why}")
        member.cause = f"{member.name}{'' if given else f', attempt {member.attempt}'}: {loss.why}"
        await self._blame(member, loss)
        await self._describe(member)
        hopeless = self._is_hopeless(member, loss, was_ready=was_ready, quick=quick)
        self._stop(member)
        if hopeless or member.attempt > self._means.settings.restarts + member.owed:
            self._give_up(member)
        else:
            await self._replace(member, loss)

    def move(self, member: Member, endpoint: Endpoint | None) -> None:
        """Its server, which somebody else starts, is elsewhere now, or nowhere for the moment."""
        if member.replica is not None:
            self._means.replicas.remove(member.replica)
            member.replica = None
        member.endpoint, member.phase, member.attempt, member.misses = endpoint, "waiting", 1, 0

    async def begin_anew(self, member: Member) -> None:
        """End its instance, if there is one, and start another; it is given up if that cannot be."""
        self._stop(member)
        try:
            await self._ended(member)
            await self.start(member)
        except SchedulerError as error:
            member.cause = f"{member.name} cannot be started again: {error}"
            self._give_up(member)

    def _is_hopeless(self, member: Member, loss: Loss, *, was_ready: bool, quick: bool) -> bool:
        code = loss.exit_code if quick and not was_ready else None
        known = code in self._quick_exits
        if code is not None:
            self._quick_exits.add(code)
        never = member.status is not None and member.status.never
        wrong = loss.exit_code == NEVER_EXIT or (loss.exit_code == USAGE_EXIT and not was_ready)
        silent = member.launch is None and not was_ready
        return known or never or wrong or silent or not loss.again

    async def _blame(self, member: Member, loss: Loss) -> None:
        node, instances = failed_node(member.status), self._means.instances
        if node is None or instances is None or loss.exit_code in (USAGE_EXIT, NEVER_EXIT):
            return
        try:
            given_up = await instances.blame(node)
        except SchedulerError as error:
            self._means.emit("warning", f"the scheduler does not answer: {error}")
            return
        if given_up:
            self._means.emit("warning", given_up)

    async def _describe(self, member: Member) -> None:
        """Add its command and its log to the cause, if anything has run."""
        status = member.status
        if self._means.instances is None or member.handle is None:
            return
        if status is None or not (status.never or status.state is State.WAITING):
            member.cause = await self._means.instances.obituary(member.handle, member.cause)

    def _stop(self, member: Member) -> None:
        """Begin to end its instance; Slurm takes 18 s to give up on a node that is dead."""
        if member.handle is None:
            return
        member.ending = stop = asyncio.create_task(self._stopped(member.handle))
        member.handle = None
        self._stops.add(stop)
        stop.add_done_callback(self._stops.discard)

    async def _stopped(self, handle: Handle) -> None:
        assert self._means.instances is not None
        try:
            await self._means.instances.stop(handle)
        except SchedulerError as error:
            self._means.emit("warning", f"{handle.name} ({handle.id}) could not be stopped: {error}")

    async def _ended(self, member: Member) -> None:
        if member.ending is None:
            return
        _, pending = await asyncio.wait({member.ending}, timeout=QUIET_S)
        if pending:
            self._means.tell(member, "waiting", f"{member.name} waits for the end of its last server")
            await asyncio.wait(pending)

    async def _replace(self, member: Member, loss: Loss) -> None:
        member.attempt += 1
        starts = self._means.settings.restarts + member.owed + 1
        self._means.emit("restart", f"{member.name}: attempt {member.attempt} of {starts}")
        try:
            if not await self._start_elsewhere(member, loss):
                await self._ended(member)
                await self.start(member)
        except SchedulerError as error:
            member.cause = f"{member.cause}\nIt cannot be started again: {error}"
            self._give_up(member)

    async def _start_elsewhere(self, member: Member, loss: Loss) -> bool:
        """Start it on other nodes at once, if its last instance cannot answer and they have room; whether it was."""
        status, instances = member.status, self._means.instances
        nodes = status.address.nodes if status is not None and status.address is not None else ()
        dead = loss.refused or (status is not None and status.lost is Lost.NODE)
        if not dead or not nodes or instances is None or member.launch is None:
            return False
        with contextlib.suppress(SchedulerError):  # then as if there were no room
            if await instances.is_room(member.name, member.launch, without=nodes):
                await self.start(member, avoid=nodes)
                return True
        return False

    def _give_up(self, member: Member) -> None:
        member.phase = "gone"
        self._means.emit("gone", f"{member.name} is given up after attempt {member.attempt}")


def now() -> float:
    """The running loop's time."""
    return asyncio.get_running_loop().time()
