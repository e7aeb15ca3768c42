"""Episodes in AReaL's flat dictionary: ``eval-rollout/reward``, its ``__count``, and what workflows recorded.

Invariant: each episode counts once, whatever its workflow recorded of it: where a workflow writes a reward of its own
into the tracker, as AReaL's do, the episode's reward stands in its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.stats.cells import Cell, ReduceType, add_apart, cell_of, export_cells
from pytest_areal_eval.stats.results import EpisodeResult

SCOPE = "eval-rollout"
OURS = tuple(f"{SCOPE}/{name}" for name in ("reward", "accepted", "rejected"))
"""Keys that are the evaluation's own: AReaL's merge loses how many episodes were rejected, and drops their reward."""


class Counted(Protocol):
    """What is read of an episode, finished just now or kept as a result."""

    @property
    def status(self) -> EpisodeStatus: ...
    @property
    def counted_reward(self) -> float: ...
    @property
    def latency_s(self) -> float: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def stats(self) -> Mapping[str, Mapping[str, Any]]: ...


def areal_cells(episodes: Iterable[Counted]) -> dict[str, Cell]:
    """What episodes come to, by key; those that were given up are in no number.

    Args:
        episodes: any number of them.
    """
    finished = [e for e in episodes if e.status is not EpisodeStatus.CANCELLED]
    if not finished:
        return {}
    rejected = sum(e.status.kind == "error" for e in finished)
    cells = {
        f"{SCOPE}/reward": cell_of([e.counted_reward for e in finished], ReduceType.SCALAR),
        f"{SCOPE}/accepted": cell_of([float(len(finished) - rejected)], ReduceType.SUM),
        f"{SCOPE}/rejected": cell_of([float(rejected)], ReduceType.SUM),
        **own_cells(finished),
    }
    measured: dict[str, list[float]] = defaultdict(list, {"timeperf/episode": [e.latency_s for e in finished]})
    for episode in finished:
        for name, value in episode.metrics.items():
            if (key := f"{SCOPE}/{name}") not in episode.stats and key not in OURS:
                measured[key].append(value)
    for key, values in measured.items():
        add_apart(cells, key, cell_of(values, ReduceType.SCALAR))
    return cells


def own_cells(episodes: Iterable[Counted]) -> dict[str, Cell]:
    """What their workflows recorded, without what the evaluation counts itself."""
    cells: dict[str, Cell] = {}
    for episode in episodes:
        for key, raw in episode.stats.items():
            if key not in OURS:
                add_apart(cells, key, Cell.read(raw))
    return cells


def session_stats(evaluations: Mapping[str, Sequence[EpisodeResult]]) -> dict[str, float]:
    """A session's one dictionary: over all evaluations, and for each of several its reward and counts.

    Args:
        evaluations: the episodes by the evaluation's name.
    """
    together = areal_cells(e for episodes in evaluations.values() for e in episodes)
    if len(evaluations) > 1:
        for name, episodes in evaluations.items():
            mine = areal_cells(episodes)
            together |= {key.replace(SCOPE, f"{SCOPE}/{name}", 1): mine[key] for key in OURS if key in mine}
    return export_cells(together)


def own_stats(episodes: Iterable[Counted]) -> dict[str, float]:
    """What their workflows recorded, exported."""
    return export_cells(own_cells(episodes))
