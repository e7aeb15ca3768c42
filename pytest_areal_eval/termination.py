"""SIGTERM as Ctrl-C: jobs are cancelled at once, the partial table is printed, the run is closed.

Python's default would end pytest on the spot.  Servers on this machine end with it all the same; jobs of a cluster
would wait for their lease.  Installed only for sessions with evaluations, in the main thread, where nobody else has a
handler.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


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


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: a second one would cut the teardown short
    raise KeyboardInterrupt("SIGTERM")
