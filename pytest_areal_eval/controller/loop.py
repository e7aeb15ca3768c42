"""An asyncio loop in a daemon thread of its own, and how other threads reach it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")

LEAVE_S = 0.5
"""How long what still runs when the loop is stopped may take to notice."""
STEP_S = 0.5
"""No wait of the main thread is longer: a signal that comes just before it begins wakes nobody, so that Ctrl-C would
be heard when the wait is over."""


class LoopThread:
    """A running loop; ``stop`` ends it."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._last: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine there and wait for its result; an interrupted wait cancels it.

        Raises:
            TimeoutError: it did not end in time; it is cancelled.
            RuntimeError: called from the loop's own thread, which would wait for itself.
        """
        try:
            self.refuse_inside()
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise
        try:
            _wait(future, timeout_s)
            return future.result(timeout=0)
        except BaseException:
            future.cancel()
            raise

    def refuse_inside(self) -> None:
        """Raise RuntimeError in the loop's own thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("this waits for the event loop and must not be called from a callback in it")

    def stop(self, limit_s: float, last: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """End the loop after ``last()``, whatever was cancelled before.

        Returns False if something blocks the loop for longer than ``limit_s``; the thread, a daemon, ends with it then.
        """
        self._last = last
        with contextlib.suppress(RuntimeError):  # closed already
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=LEAVE_S))
            if self._last is not None:
                self.loop.run_until_complete(self._last())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


def _wait(future: Future[Any], timeout_s: float | None) -> None:
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not future.done() and (left_s := until - time.monotonic()) > 0:
        wait({future}, min(left_s, STEP_S))
