"""A threshold from baseline runs of one checkpoint: as high as it can be without failing an unchanged one.

The noise that it guards against is that of running the same items again.  That is far below the binomial error where
most items come out the same every time (0.0015 against 0.0097 for a 27B model on GSM8K's 1319 rows), so the gate is
much sharper than one that is set some binomial standard errors below a mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_areal_eval.stats.power import POWER

FALSE_ALARMS = 0.01
_UNLIKELY = 0.01
DIGITS = 4


@dataclass(frozen=True)
class Proposal:
    """A threshold and what it rests on.

    Attributes:
        threshold: for ``>=``, rounded down to four digits.
        mean: over the runs.
        values: each run's.
        noise: standard deviation of a run's mean reward from run to run.
        source: ``items``: from how often each item changed; ``runs``: from the runs' means alone, because they vary
            more than the items explain by themselves, as if something shook whole runs.
        n: items.
        false_alarms: probability that an unchanged checkpoint falls below the threshold.
        mde: the true drop that falls below the threshold with 80 % probability.
        useful: some reward is below the threshold; too few runs that vary too much give one that all would pass.
    """

    threshold: float
    mean: float
    values: tuple[float, ...]
    noise: float
    source: Literal["items", "runs"]
    n: int
    false_alarms: float
    mde: float
    useful: bool


def propose(runs: Sequence[Sequence[Sequence[float]]], *, false_alarms: float = FALSE_ALARMS) -> Proposal:
    """The lower prediction limit of one more run's mean reward.

    ``mean - q * noise * sqrt(1 + 1/k)``.  The noise is pooled over the items: sum of each item's variance over the k
    runs, divided by n^2, with one item's worth added where no item may have changed yet; q is then the normal
    quantile.  Where the k means vary more than that (chi-square test at 1 %), it is their own standard deviation and q
    is Student's t with k - 1 degrees of freedom.

    Args:
        runs: for each run, for each item in the same order, its episodes' rewards.
        false_alarms: wanted probability that an unchanged checkpoint falls below.

    Raises:
        ValueError: there are fewer than two runs, no items, or the runs have different numbers of them.
    """
    if len(runs) < 2 or not runs[0] or len({len(run) for run in runs}) > 1:
        raise ValueError(f"a calibration needs two runs of the same items, got {[len(run) for run in runs]}")
    from scipy.special import chdtri, ndtri, stdtrit

    k, n = len(runs), len(runs[0])
    means = [[math.fsum(item) / len(item) for item in run] for run in runs]
    values = [math.fsum(run) / n for run in means]
    largest = max(abs(x) for run in means for x in run) or 1.0
    pooled = math.fsum(_variance(item) for item in zip(*means, strict=True)) + largest**2
    within, between = pooled / n**2, _variance(values)
    shaken = (k - 1) * between / within > float(chdtri(k - 1, _UNLIKELY))
    noise = math.sqrt(between if shaken else within)
    quantile = float(stdtrit(k - 1, 1 - false_alarms) if shaken else ndtri(1 - false_alarms))
    mean = math.fsum(values) / k
    limit = mean - quantile * noise * math.sqrt(1 + 1 / k)
    return Proposal(
        threshold=math.floor(limit * 10**DIGITS) / 10**DIGITS,
        mean=mean,
        values=tuple(values),
        noise=noise,
        source="runs" if shaken else "items",
        n=n,
        false_alarms=false_alarms,
        mde=mean - limit + float(ndtri(POWER)) * noise,
        useful=limit > min(0.0, *(x for run in means for x in run)),
    )


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)
