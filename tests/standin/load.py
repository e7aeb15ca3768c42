"""What the stand-in server saw, for ``/stat``."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Load:
    """What the server saw, for ``/stat``: requests, those in flight over time, aborts."""

    requests: int = 0
    in_flight: int = 0
    peak: int = 0
    aborted: int = 0
    connections: int = 0
    steps: list[tuple[float, int]] = field(default_factory=list)

    def begin(self) -> None:
        """A request starts."""
        self.requests += 1
        self._move(+1)

    def end(self) -> None:
        """It ends."""
        self._move(-1)

    def _move(self, by: int) -> None:
        self.in_flight += by
        self.peak = max(self.peak, self.in_flight)
        self.steps.append((time.monotonic(), self.in_flight))

    def mean_in_flight(self) -> float:
        """Weighted by time, over the middle 80 % between the first request and the last."""
        if len(self.steps) < 2:
            return 0.0
        first, last = self.steps[0][0], self.steps[-1][0]
        low, high = first + 0.1 * (last - first), last - 0.1 * (last - first)
        area = 0.0
        for (at, level), (until, _) in itertools.pairwise(self.steps):
            area += level * max(0.0, min(until, high) - max(at, low))
        return area / (high - low) if high > low else 0.0

    def report(self) -> dict[str, Any]:
        """The body of ``/stat``."""
        return {
            "n": self.requests,
            "in_flight": self.in_flight,
            "peak": self.peak,
            "mean_in_flight": self.mean_in_flight(),
            "first": self.steps[0][0] if self.steps else None,
            "last": self.steps[-1][0] if self.steps else None,
            "aborted": self.aborted,
            "connections": self.connections,
        }
