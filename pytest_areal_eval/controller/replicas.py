"""The replicas that answer now, and which of them the next request goes to.

Invariant: ``in_flight`` is the number of attempts between ``take`` and ``give_back``; it lives in the loop's thread.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random

from pytest_areal_eval.controller.clock import Clock
from pytest_areal_eval.engines.base import Endpoint
from pytest_areal_eval.errors import EngineLost

SLACK = 4
HOMES_KEPT = 4096


@dataclass(eq=False, slots=True)
class Replica:
    """One engine instance as the client sees it.

    Attributes:
        name: ``role/0``.
        endpoint: where it is; None for an engine that needs no address.
        up: False while its health is in doubt.
        gone: it was removed; its attempts fail at once.
        in_flight: attempts that it works on.
        window: attempts that it accepts at once; finite after a 429, or where that is to be found out.  It grows by one
            for each window answered, and before the first 429 by one for each answer.
        throttled: whether it has refused one.
        paused_until: loop time before which it wants no request.
        answered_at: loop time of its last answer.
        attempts: the time limits of its attempts, ended early when it is lost.
    """

    name: str
    endpoint: Endpoint | None
    up: bool = True
    gone: bool = False
    in_flight: int = 0
    window: float = math.inf
    throttled: bool = False
    paused_until: float = 0.0
    answered_at: float = 0.0
    attempts: set[asyncio.Timeout] = field(default_factory=set)


class Replicas:
    """Balances requests: fewest in flight first, ties in turn.

    Args:
        on_change: called in the loop's thread after the number of ready replicas changed.
        rng: jitter of the pauses.
    """

    def __init__(self, on_change: Callable[[], None], rng: Random) -> None:
        self._on_change = on_change
        self._rng = rng
        self._members: list[Replica] = []
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._homes: dict[str, Replica] = {}
        self._turn = 0
        self._lost = ""
        self.on_suspect: Callable[[], None] = lambda: None

    @property
    def ready(self) -> int:
        """Number of replicas that take requests."""
        return sum(r.up for r in self._members)

    @property
    def endpoints(self) -> list[Endpoint]:
        """Addresses of the replicas that take requests."""
        return [r.endpoint for r in tuple(self._members) if r.up and r.endpoint is not None]

    @property
    def room(self) -> float:
        """Attempts that those replicas accept at once."""
        return sum(r.window for r in self._members if r.up)

    def loads(self) -> dict[str, int]:
        """Attempts in flight by replica."""
        return {r.name: r.in_flight for r in tuple(self._members)}

    async def take(self, clock: Clock, avoid: Replica | None = None, near: str = "") -> Replica:
        """The replica for the next attempt; waits while there is none, with the clock stopped if none is up.

        Args:
            clock: the episode's.
            avoid: the replica that failed before; used again only if there is no other.
            near: requests of one ``near`` share a prompt's beginning, which their replica then computes once: they
                follow each other until it is busier than the idlest by an eighth and :data:`SLACK`.

        Raises:
            EngineLost: there will be none any more.
        """
        while True:
            if self._lost:
                raise EngineLost(self._lost)
            replica = self._choose(avoid, near)
            if replica is not None:
                replica.in_flight += 1
                return replica
            with nullcontext() if self.ready else clock.stopped():
                await self._change()

    def give_back(self, replica: Replica) -> None:
        """End an attempt that ``take`` began."""
        replica.in_flight -= 1
        if self._waiters:
            self._wake(1)

    def answered(self, replica: Replica) -> None:
        """Note that it answered: it lives, and its window grows."""
        replica.answered_at = asyncio.get_running_loop().time()
        if replica.window != math.inf and replica.in_flight * 2 >= replica.window:  # else it was not put to the test
            before, replica.window = replica.window, replica.window + (1 / replica.window if replica.throttled else 1)
            if int(before) < int(replica.window):
                self._on_change()

    def refused(self, replica: Replica, retry_after_s: float) -> None:
        """It is overloaded (429): halve its window and send nothing for ``retry_after_s`` and a random bit more."""
        loop = asyncio.get_running_loop()
        if replica.paused_until <= loop.time():  # one refusal of a burst counts
            replica.window, replica.throttled = max(1.0, replica.in_flight / 2), True
            self._on_change()
        pause_s = retry_after_s * (1 + 0.25 * self._rng.random())
        replica.paused_until = max(replica.paused_until, loop.time() + pause_s)
        loop.call_at(replica.paused_until, self._wake, None)

    def add(self, replica: Replica) -> None:
        """A replica became ready."""
        self._members.append(replica)
        self._changed()

    def suspect(self, replica: Replica) -> None:
        """A connection to it failed: no further request before its health is known."""
        if replica.endpoint is not None and replica.up and not replica.gone:
            replica.up = False
            self.on_suspect()
            self._on_change()

    def restore(self, replica: Replica) -> None:
        """Its health answered."""
        if not replica.up:
            replica.up = True
            self._changed()

    def remove(self, replica: Replica) -> None:
        """It is lost: its attempts end now, and their requests go elsewhere."""
        replica.gone, replica.up = True, False
        self._members.remove(replica)
        for scope in tuple(replica.attempts):
            if not scope.expired():
                scope.reschedule(0.0)
        self._changed()

    def close(self, why: str) -> None:
        """No replica will come any more: every ``take`` raises EngineLost."""
        self._lost = why
        self._wake(None)

    def _choose(self, avoid: Replica | None, near: str) -> Replica | None:
        now = asyncio.get_running_loop().time()
        free = [r for r in self._members if r.up and r.in_flight < r.window and r.paused_until <= now]
        if len(free) > 1:
            free = [r for r in free if r is not avoid]
            self._turn += 1
            turn = self._turn % len(free)
            least = min(free[turn:] + free[:turn], key=lambda r: r.in_flight)
            if not near:
                return least
            home = self._homes.pop(near, least)
            if home not in free or home.in_flight >= least.in_flight * 9 / 8 + SLACK:
                home = least
            self._homes[near] = home
            if len(self._homes) > HOMES_KEPT:
                del self._homes[next(iter(self._homes))]
            return home
        return free[0] if free else None

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._wake(1)  # the turn that this one may have been given
            raise

    def _changed(self) -> None:
        self._wake(None)
        self._on_change()

    def _wake(self, count: int | None) -> None:
        left = len(self._waiters) if count is None else count
        while self._waiters and left > 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                left -= 1
