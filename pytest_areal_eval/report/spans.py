"""The times in which an evaluation's episodes ran.  A pause between a run and its resumption is none of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from pytest_areal_eval.api import Episode


class Spans:
    """Unix times, from one to another; what overlaps is one span.

    Args:
        spans: to begin with.
    """

    def __init__(self, spans: Iterable[tuple[float, float]] = ()) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self.update(spans)

    def add(self, start: float, end: float) -> None:
        """One more, at any time; one that begins at 0 never ran."""
        if not 0 < start <= end:
            return
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)  # those that it touches
        start, end = min([start, *self._starts[first:last]]), max([end, *self._ends[first:last]])
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def update(self, spans: Iterable[tuple[float, float]]) -> None:
        """Several more."""
        for start, end in spans:
            self.add(start, end)

    @property
    def began(self) -> float:
        """The first of all times; 0 without any."""
        return self._starts[0] if self._starts else 0.0

    @property
    def ended(self) -> float:
        """The last of all times; 0 without any."""
        return self._ends[-1] if self._ends else 0.0

    @property
    def total_s(self) -> float:
        """How long they are together."""
        return sum(self._ends) - sum(self._starts)

    def pairs(self) -> list[tuple[float, float]]:
        """Each from one time to another, in order."""
        return list(zip(self._starts, self._ends, strict=True))


def spans_of(episodes: Iterable[Episode]) -> Spans:
    """When they ran."""
    return Spans((e.started_at, e.started_at + e.latency_s) for e in episodes)
