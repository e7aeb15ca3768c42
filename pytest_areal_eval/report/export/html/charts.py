"""The numbers behind the page's charts: reward by any column, lengths, latencies, and replicas over time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.report.saved import SavedEvaluation
from pytest_areal_eval.stats.estimators import clustered_mean, quantile

BINS = 40
MOST_GROUPS = 24
MOST_REPLICAS = 8
TIME_STEPS = 120


def charts(evaluation: SavedEvaluation, ids: Sequence[str]) -> dict[str, Any]:
    """All charts of an evaluation; ids in the order of the page's index."""
    episodes = [e for item_id in ids for e in evaluation.episodes[item_id]]
    mark = evaluation.row.pass_mark
    return {
        "groups": {
            name: found for name, values in _columns(evaluation, ids) if (found := _groups(evaluation, ids, values))
        },
        "tokens": histogram(episodes, lambda e: e.output_tokens, mark),
        "latency": histogram(episodes, lambda e: e.latency_s, mark),
        "replicas": in_flight(episodes),
    }


def histogram(episodes: Sequence[Episode], value: Callable[[Episode], float], mark: float) -> dict[str, Any]:
    """Counts of right and of other episodes in equal bins up to the 99.5 % quantile; the last bin takes the rest."""
    values = sorted(value(e) for e in episodes)
    top = quantile(values, 0.995) or values[-1] or 1.0
    width = _nice(top / BINS)
    whole = all(float(v).is_integer() for v in values)
    width = max(1.0, math.ceil(width)) if whole else width
    size = max(1, math.ceil(top / width + 1e-9))
    right, other = [0] * size, [0] * size
    for e in episodes:
        place = min(int(value(e) / width), size - 1)
        (right if e.counted_reward >= mark else other)[place] += 1
    return {"width": width, "right": right, "other": other, "max": values[-1], "median": quantile(values, 0.5)}


def in_flight(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Mean number of episodes in flight on each replica over the run's time."""
    timed = [e for e in episodes if e.started_at and e.latency_s]
    if not timed:
        return {}
    start, end = min(e.started_at for e in timed), max(e.started_at + e.latency_s for e in timed)
    step = max((end - start) / TIME_STEPS, 1e-3)
    busy: dict[str, list[float]] = defaultdict(lambda: [0.0] * TIME_STEPS)
    for e in timed:
        _add_busy(
            busy[e.replica or "no replica"], (e.started_at - start) / step, (e.started_at + e.latency_s - start) / step
        )
    total = {name: sum(series) for name, series in busy.items()}
    largest = sorted(busy, key=lambda name: -total[name])[:MOST_REPLICAS]
    shown = {name: [round(x, 2) for x in busy[name]] for name in sorted(largest)}
    rest = [series for name, series in busy.items() if name not in shown]
    if rest:
        shown[f"{len(rest)} more"] = [round(sum(parts), 2) for parts in zip(*rest, strict=True)]
    return {"step": step, "series": shown}


def _add_busy(series: list[float], start: float, end: float) -> None:
    first, last = int(start), min(int(end), TIME_STEPS - 1)
    for cell in range(first, last + 1):
        series[cell] += min(end, cell + 1) - max(start, cell)


def _columns(evaluation: SavedEvaluation, ids: Sequence[str]) -> list[tuple[str, list[str | None]]]:
    """Columns by which rewards are grouped: the dataset's own, then what the run itself tells."""
    names = dict.fromkeys(name for i in ids if i in evaluation.items for name in evaluation.items[i].columns)
    own = [
        (name, [evaluation.items[i].columns.get(name) if i in evaluation.items else None for i in ids])
        for name in names
    ]
    first = [evaluation.episodes[i][0] for i in ids]
    told: list[tuple[str, list[Any]]] = [
        ("prompt tokens", [e.input_tokens for e in first]),
        (
            "output tokens",
            [sum(e.output_tokens for e in evaluation.episodes[i]) / len(evaluation.episodes[i]) for i in ids],
        ),
        ("replica", [e.replica or None for e in first]),
    ]
    return [(name, _labels(values)) for name, values in [*own, *told]]


def _labels(values: Sequence[Any]) -> list[str | None]:
    """Values as group names: numbers with too many different values by their quartiles; none where texts have."""
    distinct = {v for v in values if v is not None}
    if len(distinct) <= MOST_GROUPS:
        return [None if v is None else f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    if not all(isinstance(v, int | float) for v in distinct):
        return [None] * len(values)
    numbers = sorted(float(v) for v in values if v is not None)
    edges = sorted({quantile(numbers, q) for q in (0.0, 0.25, 0.5, 0.75, 1.0)})
    return [None if v is None else _between(float(v), edges) for v in values]


def _between(value: float, edges: Sequence[float]) -> str:
    low, high = next(((a, b) for a, b in pairwise(edges) if value <= b), (edges[-2], edges[-1]))
    return f"{low:.4g} – {high:.4g}"


def _groups(evaluation: SavedEvaluation, ids: Sequence[str], labels: Sequence[str | None]) -> list[list[Any]]:
    """``[label, items, mean, low, high, items' places]`` for each group, where there are at least two."""
    members: dict[str, list[int]] = defaultdict(list)
    for place, label in enumerate(labels):
        if label is not None:
            members[label].append(place)
    if len(members) < 2:
        return []
    return [_group(label, members[label], evaluation, ids) for label in sorted(members, key=_order(members))]


def _group(label: str, places: Sequence[int], evaluation: SavedEvaluation, ids: Sequence[str]) -> list[Any]:
    rewards = [[e.counted_reward for e in evaluation.episodes[ids[place]]] for place in places]
    bounded = all(0.0 <= x <= 1.0 for group in rewards for x in group)
    estimate = clustered_mean(rewards, proportion=bounded)
    assert estimate is not None
    low, high = estimate.ci or (None, None)
    return [label, len(places), estimate.value, low, high, list(places)]


def _order(members: Mapping[str, Sequence[int]]) -> Callable[[str], tuple[float, str]]:
    def key(label: str) -> tuple[float, str]:
        try:
            return float(label.split(" – ")[0]), label
        except ValueError:
            return math.inf, label

    return key


def _nice(value: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if value <= step * power * (1 + 1e-9))
