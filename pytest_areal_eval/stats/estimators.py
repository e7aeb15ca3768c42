"""The estimators: pass@k, maj@k, and the mean with an error that is clustered by item.

Invariant: a value and its error come from the same estimator over the same episodes, and nothing is divided by a
number of draws that were not made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""

_ROUNDING = 1e-12
"""Means that differ by less, relative to the larger one, differ by float rounding alone and are equal."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over items and how sure it is.

    Attributes:
        value: the mean.
        se: its standard error, clustered by item; None for a single item, 0.0 only if all items are equal.
        ci: its 95 % interval; None where the spread cannot be known.
        n: number of items.
        count: number of values that were averaged, several for each item.
    """

    value: float
    se: float | None
    ci: tuple[float, float] | None
    n: int
    count: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of ``k`` episodes, drawn without replacement from ``n``, is right.

    The unbiased estimator 1 - C(n-c, k) / C(n, k) of Chen et al. 2021, "Evaluating large language models trained on
    code", in exact integers.

    Args:
        n: episodes that were drawn.
        c: those of them that are right.
        k: draws that are asked for.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= c <= n:
        raise ValueError(f"pass@{k} of {n} episodes cannot have {c} right ones")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} episodes and k >= 1, got {n} episodes")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def maj_at_k(votes: Sequence[tuple[str | None, bool]], k: int) -> float:
    """Chance that the commonest answer of the first ``k`` episodes is right.

    Answers are compared as text.  Tied answers share evenly, so two answers that tie, one of them right, give 0.5.
    An episode without an answer does not vote; where no episode has one, "no answer" is what they all say, and it is
    as right as their rewards are.  An answer that its grader marked both ways counts by the share marked right.

    Args:
        votes: for each episode in the order drawn, its answer and whether its reward reached the pass mark.
        k: number of episodes that vote.

    Raises:
        ValueError: unless 1 <= k <= number of episodes.
    """
    if not 1 <= k <= len(votes):
        raise ValueError(f"maj@{k} needs at least {max(k, 1)} episodes and k >= 1, got {len(votes)} episodes")
    drawn = [((answer or "").strip(), right) for answer, right in votes[:k]]
    groups: dict[str, list[bool]] = {}
    for answer, right in [vote for vote in drawn if vote[0]] or drawn:
        groups.setdefault(answer, []).append(right)
    most = max(map(len, groups.values()))
    tied = [sum(group) / most for group in groups.values() if len(group) == most]
    return math.fsum(tied) / len(tied)


def clustered_mean(clusters: Iterable[Sequence[float]], *, proportion: bool = False) -> Estimate | None:
    """Mean of all values, its error clustered by item, and a 95 % interval.

    The error is the cluster-robust one of Miller 2024, "Adding error bars to evals" (its equation for clustered
    standard errors), with the factor n/(n-1) for few clusters: with one value per item it is the usual sd/sqrt(n).
    The interval is Student's t with n-1 degrees of freedom.  That one is wrong for proportions near 0 and 1 and has
    no width where all items are equal, so a proportion whose items are all right or wrong, or all equal, gets
    Wilson's score interval over the items.

    Args:
        clusters: each item's values; an item without any is left out.
        proportion: the values lie in [0, 1] by their nature, so the interval does as well.

    Returns:
        None where there is no value at all.
    """
    groups = [group for group in clusters if group]
    if not groups:
        return None
    values = [value for group in groups for value in group]
    low, high, n = min(values), max(values), len(groups)
    value = min(max(math.fsum(values) / len(values), low), high)
    means = [math.fsum(group) / len(group) for group in groups]
    se: float | None = None
    if n > 1:
        residuals = (math.fsum(x - value for x in group) for group in groups)
        spread = math.sqrt(n / (n - 1)) * math.hypot(*residuals) / len(values)
        se = 0.0 if math.isclose(min(means), max(means), rel_tol=_ROUNDING) else spread
    if proportion and (not se or all(mean in (0.0, 1.0) for mean in means)):
        return Estimate(value, se, _wilson(value, n), n, len(values))
    ci = _student_t(value, se, n) if se else None
    if ci and proportion:
        ci = max(ci[0], 0.0), min(ci[1], 1.0)
    return Estimate(value, se, ci, n, len(values))


def quantile(ordered: Sequence[float], q: float) -> float:
    """The ``q`` quantile of a sorted, non-empty sequence, interpolated linearly."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _student_t(value: float, se: float, n: int) -> tuple[float, float]:
    from scipy.special import stdtrit  # scipy.stats takes twice as long to import

    half = float(stdtrit(n - 1, 0.975)) * se
    return value - half, value + half


def _wilson(p: float, n: int) -> tuple[float, float]:
    """Wilson's score interval (1927); no values in [0, 1] vary more than 0/1 outcomes of the same mean."""
    centre = p + Z95**2 / (2 * n)
    half = Z95 * math.sqrt(p * (1 - p) / n + (Z95 / (2 * n)) ** 2)
    scale = 1 + Z95**2 / n
    return max(min((centre - half) / scale, p), 0.0), min(max((centre + half) / scale, p), 1.0)
