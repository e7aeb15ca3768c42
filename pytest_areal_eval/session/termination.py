"""SIGTERM as Ctrl-C: jobs are cancelled at once, the partial table is printed, the run is closed.

Python's default would end pytest on the spot.  Servers on this machine end with it all the same; jobs of a cluster
would wait for their lease.  Installed only for sessions with evaluations, in the main thread, where nobody else has a
handler.  Neither signal cuts a report in two: a test is reported everywhere (terminal, JUnit, HTML, our table) or
nowhere.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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
    """Let Ctrl-C and SIGTERM act after the block, which is short; a second one of a kind acts at once.

    An exception out of a hook that another plugin wraps in the old way (pytest-html's ``makereport``) is a pluggy
    warning, which ``-W error`` makes an internal error of pytest.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    waiting: dict[int, Any] = {}

    def later(number: int, frame: FrameType | None) -> None:
        if number in waiting:
            waiting[number](number, frame)
        waiting[number] = handlers[signal.Signals(number)]

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, later)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, handler)
        for came, act in waiting.items():
            act(came, None)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: a second one would cut the teardown short
    raise KeyboardInterrupt("SIGTERM")
