"""What an estimate could have shown: the smallest effect that it would detect, and how surely it detects a given one.

Both are of the two-sided normal test at level ``alpha``, whose critical value is ``z(1 - alpha/2)`` standard errors.
"""

from __future__ import annotations

import math

from pytest_areal_eval.stats.estimators import Z95, Estimate

ALPHA = 0.05
POWER = 0.8


def minimal_detectable_effect(se: float, *, power: float = POWER, alpha: float = ALPHA) -> float:
    """The true difference that is found with probability ``power``: ``(z(1 - alpha/2) + z(power)) * se``.

    Args:
        se: standard error of the difference; of the value itself where it is held against a fixed number.
        power: wanted probability of finding it.
        alpha: probability of finding one where there is none.
    """
    from scipy.special import ndtri

    return float(ndtri(1 - alpha / 2) + ndtri(power)) * se


def detection_power(effect: float, se: float, *, alpha: float = ALPHA) -> float:
    """Probability of finding a true difference of ``effect``; both signs of the finding count."""
    from scipy.special import ndtr, ndtri

    if se <= 0.0:
        return 1.0 if effect else alpha
    critical, shift = float(ndtri(1 - alpha / 2)), abs(effect) / se
    return float(ndtr(shift - critical) + ndtr(-shift - critical))


def spread(estimate: Estimate) -> float | None:
    """The standard error; where it is 0 because all items are equal, the one that the 95 % interval stands for."""
    if estimate.se:
        return estimate.se
    if estimate.ci is None:
        return None
    width = estimate.ci[1] - estimate.ci[0]
    return width / (2 * Z95) if math.isfinite(width) and width > 0 else None
