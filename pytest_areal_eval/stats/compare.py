"""Two runs on the same items: the paired difference, its interval, and how likely it is by chance.

Invariant: an item is one observation, however many episodes it has, and is held against itself; what both runs share
(hard items) cancels out.  Pairing makes the detectable effect two to four times smaller than two separate scores do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_areal_eval.stats.estimators import Z95, Estimate, clustered_mean

RESAMPLES = 20_000
_EXACT_UP_TO = 14
"""Items with a difference up to which all 2^n sign patterns are counted."""

Test = Literal["McNemar exact", "sign-flip permutation"]


@dataclass(frozen=True)
class Paired:
    """The change from a baseline to a candidate.

    Attributes:
        baseline: mean reward over the shared items.
        candidate: the same of the candidate.
        difference: candidate minus baseline, with a 95 % interval.
        better: items on which the candidate is better.
        worse: items on which it is worse.
        p_value: two-sided probability of a difference at least as large if neither is better.
        test: where it is from.
    """

    baseline: float
    candidate: float
    difference: Estimate
    better: int
    worse: int
    p_value: float
    test: Test


def paired_difference(baseline: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]) -> Paired:
    """Compare the rewards of the same items in the same order.

    Single right-or-wrong episodes get McNemar's exact test and the interval of Agresti and Min 2005 ("Simple improved
    confidence intervals for comparing matched proportions"), which has a width even where no item changed.  Anything
    else gets Student's t on the items' mean differences and a permutation of their signs.

    Args:
        baseline: for each item its episodes' rewards.
        candidate: the same, item by item.

    Raises:
        ValueError: there is no item, the numbers of items differ, or an item has no episode.
    """
    if not baseline or len(baseline) != len(candidate) or not all((*baseline, *candidate)):
        raise ValueError(
            f"cannot pair {len(baseline)} items with {len(candidate)}: both need the same ones, with rewards"
        )
    before, after = [_mean(x) for x in baseline], [_mean(x) for x in candidate]
    changes = [b - a for a, b in zip(before, after, strict=True)]
    better, worse = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    binary = all(len(group) == 1 and group[0] in (0.0, 1.0) for group in (*baseline, *candidate))
    bounded = all(0.0 <= x <= 1.0 for group in (*baseline, *candidate) for x in group)
    return Paired(
        baseline=_mean(before),
        candidate=_mean(after),
        difference=difference_of(changes, agresti_min=binary, bounded=bounded),
        better=better,
        worse=worse,
        p_value=mcnemar_exact(better, worse) if binary else sign_flip(changes),
        test="McNemar exact" if binary else "sign-flip permutation",
    )


def difference_of(changes: Sequence[float], *, agresti_min: bool, bounded: bool) -> Estimate:
    """The mean of the items' differences with a 95 % interval.

    Args:
        changes: one for each item.
        agresti_min: use that interval; else Student's t.
        bounded: rewards lie in [0, 1]; where all changes are equal and t has no width, Agresti and Min's stands in.
    """
    estimate = clustered_mean([change] for change in changes)
    assert estimate is not None
    if agresti_min or (not estimate.se and bounded):
        n = len(changes) + 2
        centre = math.fsum(changes) / n
        squares = math.fsum(c * c for c in changes) + 1
        half = Z95 * math.sqrt(max(squares - n * centre**2, 0.0)) / n
        interval = max(centre - half, -1.0), min(centre + half, 1.0)
        return Estimate(estimate.value, estimate.se, interval, estimate.n, estimate.count)
    return estimate


def mcnemar_exact(better: int, worse: int) -> float:
    """Two-sided p-value of McNemar's exact test: of the items that changed, each way is as likely.

    Args:
        better: items that were wrong and are right.
        worse: items that were right and are wrong.
    """
    changed = better + worse
    tail = sum(math.comb(changed, i) for i in range(min(better, worse) + 1))
    return min(1.0, float(2 * tail / 2**changed))


def sign_flip(changes: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided p-value of the mean change under random signs: exact for few changes, drawn with a seed for many.

    A drawn one is ``(1 + hits) / (1 + resamples)``, so it is never 0 (Phipson and Smyth 2010).
    """
    import numpy as np

    moved = np.array([change for change in changes if change], dtype=np.float64)
    if not len(moved):
        return 1.0
    reached = abs(float(moved.sum())) * (1 - 1e-12)
    if len(moved) <= _EXACT_UP_TO:
        patterns = np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1
        return float(np.mean(np.abs((2 * patterns - 1) @ moved) >= reached))
    random, hits, step = np.random.default_rng(seed), 0, max(1, 4_000_000 // len(moved))
    for start in range(0, resamples, step):
        signs = random.integers(0, 2, (min(step, resamples - start), len(moved)), dtype=np.int8)
        hits += int(np.count_nonzero(np.abs((2 * signs - 1) @ moved) >= reached))
    return (1 + hits) / (1 + resamples)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
