"""SIGTERM as Ctrl-C: jobs are cancelled at once, the partial table is printed, the run is closed.

Python's default would end pytest on the spot.  Servers on this machine end with it all the same; jobs of a cluster
would wait for their lease.  Installed only for sessions with evaluations, in the main thread, where nobody else has a
handler.  Neither signal cuts a report in two: a test is reported everywhere (terminal, JUnit, HTML, our table) or
nowhere.
"""

from __future__ import annotations

import _thread  # a thread of threading's takes locks to begin, which the interrupted code may hold
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

HELD_S = 1.0
"""How long a signal waits at most for the report that is being made."""


class Termination:
    """Holds the handler for the length of a session."""

    def __init__(self) -> None:
        self._installed = False

    def install(self) -> None:
        """Turn SIGTERM into ``KeyboardInterrupt`` from now on."""
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _interrupt)
            self._installed = True

    def restore(self) -> None:
        """Give the signal its default back."""
        if self._installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False


@contextmanager
def held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM act after the block, or ``HELD_S`` after they came; a second one of a kind acts at once.

    An exception in the middle of pytest's own work may end it in other ways: out of a hook that a plugin wraps in the
    old way (pytest-html's ``makereport``) it is a pluggy warning, at a bytecode without a line it breaks the traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    block = _Block({number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)})
    block.begin()
    try:
        yield
    finally:
        block.end()


class _Block:
    """What came while it lasts."""

    def __init__(self, handlers: Mapping[signal.Signals, Any]) -> None:
        self._handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
        self._came: list[signal.Signals] = []
        self._over = False
        self._ending = threading.Lock()

    def begin(self) -> None:
        for number in self._handlers:
            signal.signal(number, self._hear)

    def end(self) -> None:
        with self._ending:
            self._over = True
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(self._came):
            self._handlers[number](number, None)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        known = signal.Signals(number)
        again = known in self._came
        self._came.append(known)
        if not again:
            _thread.start_new_thread(self._remind, (number, threading.get_ident()))
        elif not self._over:
            self._handlers[known](number, frame)

    def _remind(self, number: int, thread: int) -> None:
        """A test's own body may take minutes."""
        time.sleep(HELD_S)
        with self._ending:
            if not self._over:
                signal.pthread_kill(thread, number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: a second one would cut the teardown short
    raise KeyboardInterrupt("SIGTERM")
