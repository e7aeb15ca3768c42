"""An episode's place among those in flight, given up while it is graded, so that a grader keeps no replica idle."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Places:
    """Counts the places that are taken: one for each running episode, but for those that are away.

    Args:
        on_free: called when a place came free and nobody waits to come back.
    """

    def __init__(self, on_free: Callable[[], None]) -> None:
        self.limit = 0
        self.taken = 0
        self._on_free = on_free
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> int:
        """Places that a new episode may take; those that come back go first."""
        return self.limit - self.taken - len(self._waiting)

    def take(self) -> Place:
        """A place for a new episode."""
        self.taken += 1
        return Place(self)

    def release(self) -> None:
        """One place less is taken."""
        self.taken -= 1
        self.admit()

    def admit(self) -> None:
        """Let those come back for whom there is room, then new ones."""
        while self._waiting and self.taken < self.limit:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.taken += 1
                waiter.set_result(None)
        self._on_free()

    async def wait(self) -> None:
        """Take a place, as soon as there is one."""
        if self.taken < self.limit:
            self.taken += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()
            else:
                self._waiting.remove(waiter)
            raise


class Place:
    """One episode's place.  ``held`` tells whether it has it now."""

    __slots__ = ("_places", "held")

    def __init__(self, places: Places) -> None:
        self._places = places
        self.held = True

    @contextmanager
    def away(self) -> Iterator[None]:
        """While the episode waits for its grader; it comes back with its next request, if it makes one."""
        self.give_up()
        yield

    async def back(self) -> None:
        """Have the place again before a request; at once where it was kept."""
        if not self.held:
            await self._places.wait()
            self.held = True

    def give_up(self) -> None:
        """The episode is away or over.  A second call does nothing."""
        if self.held:
            self.held = False
            self._places.release()
