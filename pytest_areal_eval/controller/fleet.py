"""From instances or given addresses to ready replicas: all are started, polled together and cared for one by one.

Invariant: the run begins with the first ready replica, and ends when none is left that could become ready.  What one
replica waits for holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from pytest_areal_eval.controller.means import Means
from pytest_areal_eval.controller.member import Member
from pytest_areal_eval.controller.recovery import Recovery, now
from pytest_areal_eval.controller.upkeep import TICK_S, Upkeep
from pytest_areal_eval.engines.base import Endpoint, Launch, Reloading
from pytest_areal_eval.errors import ArealEvalError, CannotFit, EngineLost, EngineStartError, SchedulerError
from pytest_areal_eval.schedulers.base import State

SCHEDULER_FAILURES = 5
LONGER = "if the server only needs longer, raise --start-timeout."
SOURCE_S = 1.0
"""How often a source of addresses is asked."""


class Fleet:
    """Brings replicas up and watches them.

    Args:
        members: one for each replica.
        means: what it works with.
        source: where the members' servers are now, for those that somebody else starts, also anew; what it raises ends
            the run.
    """

    def __init__(
        self, members: Sequence[Member], means: Means, source: Callable[[], Sequence[Endpoint]] | None = None
    ) -> None:
        self._members = list(members)
        self._means = means
        self._source = source
        self._recovery = Recovery(means)
        self._upkeep = Upkeep(means, self._recovery)
        self._nudge = asyncio.Event()
        self._steady = asyncio.Lock()
        self._steps: dict[Member, asyncio.Task[None]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._polled_starts = 0
        self._next_poll = 0.0
        self._poll_pause_s = TICK_S
        self._poll_failures = 0
        means.replicas.on_suspect = self._nudge.set

    async def run(self) -> None:
        """Start everything and watch it; never returns.

        Raises:
            EngineStartError: no replica became ready.
            EngineLost: all are gone and the restarts are spent.
            CannotFit: the scheduler can never give what a replica needs.
        """
        # 96 jobs take seconds to submit, the first one is up in two.
        self._starting = starting = asyncio.create_task(self._start_all())
        try:
            while True:
                if starting.done():
                    starting.result()
                if self._source is not None:
                    self._follow(self._source())
                async with self._steady:
                    await self._step(polled=await self._poll())
                if self._members and all(m.phase == "gone" for m in self._members):
                    raise self._verdict()
                await self._rest()
        finally:
            for task in (starting, *self._steps.values()):
                task.cancel()
            await asyncio.gather(starting, *self._steps.values(), return_exceptions=True)

    @property
    def size(self) -> int:
        """How many replicas there are, ready or not."""
        return len(self._members)

    @property
    def lost(self) -> int:
        """How many replicas were lost after they had been ready."""
        return self._recovery.lost

    async def first_ready(self) -> None:
        """Wait for the first ready replica; :meth:`run` raises if there will be none."""
        await self._upkeep.once_ready.wait()

    async def reload(self, engine: Reloading, launches: Mapping[str, Launch]) -> None:
        """Let every server load the engine's checkpoint; one that cannot is started anew with it.

        Args:
            engine: has the checkpoint.
            launches: how servers are started from now on, by name.
        """
        if self._starting is not None:
            await asyncio.wait([self._starting])
        async with self._steady:
            if self._steps:
                await asyncio.wait(self._steps.values())
            self._upkeep.once_ready.clear()
            await asyncio.gather(*(self._upkeep.reload(m, engine, launches[m.name]) for m in self._members))
        self._nudge.set()

    def _follow(self, endpoints: Sequence[Endpoint]) -> None:
        """Go where the servers are now; one that is nowhere is waited for if it does not answer either."""
        found = {endpoint.name: endpoint for endpoint in endpoints}
        for member in self._members:
            endpoint = found.pop(member.name, None)
            lost = member.replica is None and member.endpoint is not None
            if member not in self._steps and (lost if endpoint is None else endpoint != member.endpoint):
                self._recovery.move(member, endpoint)
        self._members += [Member(endpoint.name, endpoint=endpoint, owed=1) for endpoint in found.values()]

    async def _start_all(self) -> None:
        try:
            if self._means.instances is not None:
                await self._means.instances.check([m.launch for m in self._members if m.launch is not None])
            for member in self._members:
                await self._recovery.start(member)
        finally:
            self._nudge.set()

    async def _step(self, *, polled: bool) -> None:
        """Let each do what is due; one that takes longer goes on beside the next rounds."""
        idle = [member for member in self._members if member.phase != "gone" and member not in self._steps]
        begun = {member: asyncio.create_task(self._upkeep.step(member, polled=polled)) for member in idle}
        self._steps |= begun
        if begun:
            await asyncio.wait(begun.values(), timeout=TICK_S)
        for member, step in tuple(self._steps.items()):
            if step.done():
                del self._steps[member]
                step.result()

    async def _poll(self) -> bool:
        """Ask the scheduler, the less often the longer nothing was started; returns whether it was time for it."""
        if self._polled_starts != self._recovery.starts:
            self._polled_starts, self._next_poll, self._poll_pause_s = self._recovery.starts, 0.0, TICK_S
        if self._means.instances is None or now() < self._next_poll:
            return False
        by_handle = {m.handle: m for m in self._members if m.handle is not None and m not in self._steps}
        try:
            for handle, status in (await self._means.instances.poll(tuple(by_handle))).items():
                by_handle[handle].status = status
            self._poll_failures = 0
        except SchedulerError as error:
            self._poll_failures += 1
            self._means.emit("warning", f"the scheduler does not answer: {error}")
            if self._poll_failures >= SCHEDULER_FAILURES and not self._means.replicas.ready:
                raise
        self._poll_pause_s = min(self._poll_pause_s * 2, self._means.settings.health_interval_s)
        self._next_poll = now() + self._poll_pause_s
        return True

    def _verdict(self) -> ArealEvalError:
        many = f"all {len(self._members)} replicas" if len(self._members) > 1 else "the replica"
        cause = self._members[0].cause
        if all(member.status is not None and member.status.never for member in self._members):
            return CannotFit(cause)
        if self._upkeep.once_ready.is_set():
            lost = "was lost" if len(self._members) == 1 else "were lost"
            return EngineLost(f"{many} {lost} and the restarts are spent; the first: {cause}")
        if self._means.instances is None:
            return EngineStartError(f"no server can be used; {cause}")
        return EngineStartError(f"the engine did not start; {cause}", self._hint())

    def _hint(self) -> str:
        status = self._members[0].status
        if status is not None and status.state is State.WAITING:
            return "Wait longer with --queue-timeout, or ask for less or for another place."
        ended = status is not None and status.state is State.GONE
        return "Run the command by hand to see more" + ("." if ended else f"; {LONGER}")

    async def _rest(self) -> None:
        settled = all(m.phase == "gone" or (m.replica is not None and m.replica.up) for m in self._members)
        pause_s = self._means.settings.health_interval_s if settled else TICK_S
        if self._source is not None:
            pause_s = min(pause_s, SOURCE_S)
        try:
            async with asyncio.timeout(pause_s):
                await self._nudge.wait()
        except TimeoutError:
            return
        self._nudge.clear()
