"""An episode's time limit, which stands still while no replica is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class Clock:
    """``async with Clock(limit_s):`` raises TimeoutError at the limit; ``with clock.stopped():`` does not count."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._scope = asyncio.Timeout(None)
        self._left = limit_s
        self._stops = 0
        self._running = False

    async def __aenter__(self) -> Clock:
        await self._scope.__aenter__()
        self._running = True
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = False
        await self._scope.__aexit__(kind, error, trace)

    @property
    def expired(self) -> bool:
        """Whether the limit was reached."""
        return self._scope.expired()

    def overdue_s(self) -> float:
        """Seconds since the limit passed; negative before it, and while the clock stands still."""
        when = self._scope.when() if self._running else None
        return float("-inf") if when is None else asyncio.get_running_loop().time() - when

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let no time pass inside; nests, also over concurrent requests of one episode."""
        if self._stops == 0 and self._can_move():
            when = self._scope.when()
            self._left = None if when is None else when - asyncio.get_running_loop().time()
            self._scope.reschedule(None)
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            if self._stops == 0 and self._can_move():
                self._arm()

    def _can_move(self) -> bool:
        return self._running and not self._scope.expired()

    def _arm(self) -> None:
        if self._left is not None:
            self._scope.reschedule(asyncio.get_running_loop().time() + self._left)
