"""One evaluation's numbers.

Invariant: requested = scored + grader faults + errors, because ``requested`` is nothing but the sum of the counts per
status.  An error counts 0 in the headline reward; a cancelled episode was never work done and is counted apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.stats.estimators import Estimate, clustered_mean, maj_at_k, pass_at_k, quantile
from pytest_areal_eval.stats.results import EpisodeResult, ItemResult

_Finished = Sequence[tuple[EpisodeResult, ...]]
_Votes = Sequence[tuple[str | None, bool]]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What is reported of one evaluation, and what its gates are decided on.

    Attributes:
        name: the evaluation's name.
        n_items: items with at least one finished episode.
        n_selected: items that this run was to evaluate.
        n_total: items of the dataset.
        n_samples: episodes asked for per item, the k of avg@k.
        pass_mark: the reward from which an episode, or an item, is right.
        counts: finished episodes per status, the statuses that occurred.
        cancelled: episodes that were given up before they ended; part of no other number.
        missed: items with results whose reward is below the pass mark.
        cut: episodes whose generation ended at the token limit, whatever became of the answer.
        headline: mean reward, an episode without one counted as 0; None if nothing was scored.
        scored_only: mean reward over the episodes that were scored.
        completed_only: mean reward over those of them that answered within the token limit.
        ks: the k's of pass@k and maj@k that were asked for; empty without repeats, unless a gate wants them.
        pass_at: for k, the mean of pass@k over the items with at least k finished episodes.
        maj_at: for k, the same of maj@k; empty where no episode has an extracted answer.
        metrics: mean of each further number, over the episodes that have it.
        input_tokens: prompt tokens of all finished episodes.
        output_tokens: generated tokens of all finished episodes.
        mean_output_tokens: generated tokens per episode that did not end in an error.
        median_output_tokens: their median.
        latency_s: quantiles of a finished episode's seconds, by name (``p50``, ``p90``, ``p99``, ``max``).
    """

    name: str
    n_items: int
    n_selected: int
    n_total: int
    n_samples: int
    pass_mark: float
    counts: Mapping[EpisodeStatus, int]
    cancelled: int
    missed: int
    cut: int
    headline: Estimate | None
    scored_only: Estimate | None
    completed_only: Estimate | None
    ks: tuple[int, ...]
    pass_at: Mapping[int, Estimate]
    maj_at: Mapping[int, Estimate]
    metrics: Mapping[str, Estimate]
    input_tokens: int
    output_tokens: int
    mean_output_tokens: float | None
    median_output_tokens: float | None
    latency_s: Mapping[str, float]

    @property
    def requested(self) -> int:
        """Episodes that ran to an end of whatever kind."""
        return sum(self.counts.values())

    @property
    def scored(self) -> int:
        """Episodes that a grader gave a reward."""
        return self._of_kind("scored")

    @property
    def grader_faults(self) -> int:
        """Episodes whose grader raised or timed out; they count 0."""
        return self._of_kind("grader_fault")

    @property
    def errors(self) -> int:
        """Episodes without a reward; they count 0."""
        return self._of_kind("error")

    @property
    def reward(self) -> float | None:
        """The headline: mean reward over all requested episodes; None if nothing was scored."""
        return self.headline.value if self.headline else None

    @property
    def reward_se(self) -> float | None:
        """Its standard error, clustered by item."""
        return self.headline.se if self.headline else None

    @property
    def reward_ci(self) -> tuple[float, float] | None:
        """Its 95 % interval."""
        return self.headline.ci if self.headline else None

    @property
    def reward_scored(self) -> float | None:
        """Mean reward over the scored episodes."""
        return self.scored_only.value if self.scored_only else None

    @property
    def reward_completed(self) -> float | None:
        """Mean reward over the episodes that answered within the token limit."""
        return self.completed_only.value if self.completed_only else None

    @property
    def error_rate(self) -> float | None:
        """Share of the requested episodes that ended in an error; rates are None where nothing finished."""
        return self._share(self.errors)

    @property
    def fault_rate(self) -> float | None:
        """Share of the requested episodes whose grader failed."""
        return self._share(self.grader_faults)

    @property
    def truncation_rate(self) -> float | None:
        """Share of the requested episodes that ended at the token limit."""
        return self._share(self.cut)

    @property
    def empty_rate(self) -> float | None:
        """Share of the requested episodes that answered nothing."""
        return self._share(self.counts.get(EpisodeStatus.EMPTY, 0))

    @property
    def missed_rate(self) -> float | None:
        """Share of the items with results that are below the pass mark."""
        return self.missed / self.n_items if self.n_items else None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able copy of every number, the derived ones included."""
        stored = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {key: _plain(value) for key, value in {**stored, **{k: getattr(self, k) for k in _DERIVED}}.items()}

    def _of_kind(self, kind: str) -> int:
        return sum(count for status, count in self.counts.items() if status.kind == kind)

    def _share(self, count: int) -> float | None:
        return count / self.requested if self.requested else None


_DERIVED = tuple(name for name, value in vars(Summary).items() if isinstance(value, property))


def summarize(
    name: str,
    items: Sequence[ItemResult],
    *,
    n_samples: int,
    n_selected: int,
    n_total: int,
    pass_mark: float = 1.0,
    ks: Collection[int] = (),
) -> Summary:
    """Add up one evaluation.

    Args:
        name: the evaluation's name.
        items: results in any order; an item may have none yet, or fewer than ``n_samples`` episodes.
        n_samples: episodes asked for per item.
        n_selected: items that this run was to evaluate.
        n_total: items of the dataset.
        pass_mark: the reward from which an episode, or an item, is right.
        ks: k's of pass@k and maj@k that are wanted (by gates) beside the powers of two and ``n_samples``.

    Raises:
        ValueError: an item's id occurs twice, or an item has more episodes than were asked for.
    """
    _refuse_duplicates(name, items, n_samples, n_selected, n_total)
    finished = [episodes for episodes in (item.finished for item in items) if episodes]
    episodes = [e for group in finished for e in group]
    answered = sorted(float(e.output_tokens) for e in episodes if e.status.kind != "error")
    scored = _rewards(finished, _is_scored)
    rewards = _rewards(finished, lambda _: True)
    bounded = all(0.0 <= x <= 1.0 for group in rewards for x in group)
    votes = [[(e.answer, _is_right(e, pass_mark)) for e in group] for group in finished] if any(scored) else []
    all_ks = _ks(n_samples, ks)
    return Summary(
        name=name,
        n_items=len(finished),
        n_selected=n_selected,
        n_total=n_total,
        n_samples=n_samples,
        pass_mark=pass_mark,
        counts=_counts(episodes),
        cancelled=sum(len(item.episodes) for item in items) - len(episodes),
        missed=sum(item.reward is not None and item.reward < pass_mark for item in items),
        cut=sum(e.was_cut for e in episodes),
        headline=clustered_mean(rewards, proportion=bounded) if any(scored) else None,
        scored_only=clustered_mean(scored, proportion=bounded),
        completed_only=clustered_mean(_rewards(finished, _is_completed), proportion=bounded),
        ks=all_ks,
        pass_at=_present((k, _pass_at(votes, k)) for k in all_ks),
        maj_at=_present((k, _maj_at(votes, k)) for k in all_ks if any(e.answer for e in episodes)),
        metrics=_metric_means(finished),
        input_tokens=sum(e.input_tokens for e in episodes),
        output_tokens=sum(e.output_tokens for e in episodes),
        mean_output_tokens=math.fsum(answered) / len(answered) if answered else None,
        median_output_tokens=quantile(answered, 0.5) if answered else None,
        latency_s=_latencies(episodes),
    )


def _refuse_duplicates(name: str, items: Sequence[ItemResult], n_samples: int, n_selected: int, n_total: int) -> None:
    twice = [item_id for item_id, count in Counter(item.item_id for item in items).items() if count > 1]
    if twice:
        raise ValueError(f"{name}: {len(twice)} items have more than one result: {', '.join(sorted(twice)[:5])}")
    if len(items) > n_selected or n_selected > n_total:
        raise ValueError(f"{name}: {len(items)} results for {n_selected} selected items of {n_total}")
    for item in items:
        if len(item.episodes) > n_samples:
            raise ValueError(f"{name}: item {item.item_id} has {len(item.episodes)} of {n_samples} episodes")


def _ks(n_samples: int, wanted: Collection[int]) -> tuple[int, ...]:
    """1, 2, 4, ... and n_samples where episodes repeat, and what else was wanted and can be had."""
    usual = {2**i for i in range(n_samples.bit_length())} | {n_samples} if n_samples > 1 else set()
    return tuple(sorted(usual | {k for k in wanted if 1 <= k <= n_samples}))


def _counts(episodes: Sequence[EpisodeResult]) -> dict[EpisodeStatus, int]:
    """The commonest first, whichever occurred first."""
    found = Counter(e.status for e in episodes)
    return {status: found[status] for status in sorted(found, key=lambda s: (-found[s], s))}


def _is_scored(episode: EpisodeResult) -> bool:
    return episode.status.kind == "scored"


def _is_completed(episode: EpisodeResult) -> bool:
    return episode.status is EpisodeStatus.SCORED and not episode.was_cut


def _rewards(finished: _Finished, keep: Callable[[EpisodeResult], bool]) -> list[list[float]]:
    return [[e.counted_reward for e in episodes if keep(e)] for episodes in finished]


def _is_right(episode: EpisodeResult, pass_mark: float) -> bool:
    return episode.reward is not None and episode.reward >= pass_mark


def _pass_at(votes: Sequence[_Votes], k: int) -> Estimate | None:
    counts = ((len(group), sum(right for _, right in group)) for group in votes)
    return clustered_mean(([pass_at_k(n, c, k)] for n, c in counts if n >= k), proportion=True)


def _maj_at(votes: Sequence[_Votes], k: int) -> Estimate | None:
    return clustered_mean(([maj_at_k(group, k)] for group in votes if len(group) >= k), proportion=True)


def _present(estimates: Iterable[tuple[int, Estimate | None]]) -> dict[int, Estimate]:
    return {k: estimate for k, estimate in estimates if estimate}


def _metric_means(finished: _Finished) -> dict[str, Estimate]:
    names = dict.fromkeys(name for episodes in finished for e in episodes for name in e.metrics)
    means = {
        name: clustered_mean([e.metrics[name] for e in episodes if name in e.metrics] for episodes in finished)
        for name in names
    }
    return {name: mean for name, mean in means.items() if mean}


def _latencies(episodes: Sequence[EpisodeResult]) -> dict[str, float]:
    ordered = sorted(e.latency_s for e in episodes)
    named = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: quantile(ordered, q) for name, q in named.items()} if ordered else {}


def _plain(value: Any) -> Any:
    """Estimates to dicts, statuses and k's to the strings that JSON's keys are."""
    if isinstance(value, Estimate):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return list(value) if isinstance(value, tuple) else value
