"""Paired differences: known answers, and how often the interval and the tests are right, by simulation."""

from __future__ import annotations

import itertools
import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_areal_eval.stats.compare import mcnemar_exact, paired_difference, sign_flip
from pytest_areal_eval.stats.estimators import Estimate
from pytest_areal_eval.stats.power import detection_power, minimal_detectable_effect, spread


@pytest.mark.parametrize(
    ("better", "worse", "p_value"), [(0, 0, 1.0), (1, 0, 1.0), (6, 0, 2 / 64), (1, 9, 22 / 1024), (5, 5, 1.0)]
)
def test_mcnemar_is_the_binomial_test_of_what_changed(better: int, worse: int, p_value: float) -> None:
    assert mcnemar_exact(better, worse) == p_value == mcnemar_exact(worse, better)


def test_items_that_changed_decide_a_comparison_of_single_episodes() -> None:
    before = [[1.0]] * 90 + [[0.0]] * 10
    after = [[1.0]] * 84 + [[0.0]] * 6 + [[1.0]] * 2 + [[0.0]] * 8
    p = paired_difference(before, after)
    assert (p.baseline, p.candidate, p.better, p.worse, p.test) == (0.9, 0.86, 2, 6, "McNemar exact")
    assert p.difference.value == pytest.approx(-0.04)
    # Agresti and Min: ((c - b) -+ 1.96 sqrt(b + c + 1 - (c - b)^2 / (n + 2))) / (n + 2)
    half = 1.959964 * math.sqrt(9 - 16 / 102) / 102
    assert p.difference.ci == pytest.approx((-4 / 102 - half, -4 / 102 + half), abs=1e-6)


def test_where_nothing_changed_the_interval_has_a_width() -> None:
    """C32: 30 items that are all the same are no proof that the checkpoints are."""
    for group in ([1.0], [1.0, 1.0]):
        difference = paired_difference([group] * 30, [group] * 30).difference
        assert difference.value == 0.0
        assert difference.ci is not None
        assert difference.ci[0] < -0.03 < 0.03 < difference.ci[1]


def test_averages_are_compared_by_students_t_and_a_permutation() -> None:
    before, after = [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0], [0.0, 1.0]]
    p = paired_difference(before, after)
    assert p.test == "sign-flip permutation"
    assert p.difference.value == pytest.approx(1 / 3)
    assert p.difference.se == pytest.approx(np.std([0.5, 0.0, 0.5], ddof=1) / math.sqrt(3))
    assert p.p_value == 0.5  # ++ and -- of the four sign patterns


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=8))
def test_few_changes_are_permuted_exactly(changes: list[float]) -> None:
    patterns = itertools.product((1, -1), repeat=len(changes))
    sums = [abs(sum(map(operator.mul, signs, changes))) for signs in patterns]
    expected = sum(total >= abs(sum(changes)) - 1e-9 for total in sums) / len(sums)
    assert sign_flip(changes) == pytest.approx(expected)


def test_a_sum_that_rounds_otherwise_is_as_large() -> None:
    """Without it not even the signs that were seen would reach what was seen."""
    assert sign_flip([0.5, 0.6, 0.1, 0.6]) == 2 / 16


def test_many_changes_are_drawn_with_a_seed_and_never_give_zero() -> None:
    changes = [0.5] * 60
    assert sign_flip(changes) == sign_flip(changes) == 1 / 20_001
    balanced = [0.5, -0.5] * 30
    assert sign_flip(balanced) == 1.0


@pytest.mark.parametrize(("before", "after"), [([], []), ([[1.0]], []), ([[1.0]], [[]])])
def test_what_cannot_be_paired_is_refused(before: list[list[float]], after: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="cannot pair"):
        paired_difference(before, after)


def test_the_minimal_detectable_effects_are_the_published_ones() -> None:
    """C44: GPQA's 198 rows at .62; D6's table: paired runs on 1319 rows with 8 % and 2 % of them changing."""
    assert minimal_detectable_effect(math.sqrt(2 * 0.62 * 0.38 / 198)) == pytest.approx(0.137, abs=0.001)
    assert minimal_detectable_effect(math.sqrt(0.08 / 1319)) == pytest.approx(0.022, abs=0.001)
    assert minimal_detectable_effect(math.sqrt(0.02 / 1319)) == pytest.approx(0.011, abs=0.001)


@given(st.floats(1e-4, 1.0), st.floats(0.5, 0.99))
def test_power_at_the_minimal_detectable_effect_is_what_was_asked_for(se: float, power: float) -> None:
    found = detection_power(minimal_detectable_effect(se, power=power), se)
    assert found == pytest.approx(power, abs=0.001)


def test_power_without_an_effect_is_the_false_alarm_rate() -> None:
    assert detection_power(0.0, 0.01) == pytest.approx(0.05)
    assert (detection_power(0.1, 0.0), detection_power(0.0, 0.0)) == (1.0, 0.05)


def test_all_equal_items_have_the_spread_of_their_interval() -> None:
    assert spread(Estimate(1.0, 0.0, (0.9, 1.0), 30, 30)) == pytest.approx(0.1 / 3.92, rel=0.001)
    assert spread(Estimate(1.0, 0.02, (0.9, 1.0), 30, 30)) == 0.02
    assert spread(Estimate(1.0, None, None, 1, 1)) is None


def simulate(n: int, p_better: float, p_worse: float, runs: int) -> tuple[float, float, float]:
    """Share of simulated pairs whose interval holds the truth, is above 0, and whose p-value is under 5 %."""
    random = np.random.default_rng(7)
    truth, held, above, small = p_better - p_worse, 0, 0, 0
    for b, c, _ in random.multinomial(n, [p_better, p_worse, 1 - p_better - p_worse], size=runs):
        before = [[0.0]] * b + [[1.0]] * c + [[1.0]] * (n - b - c)
        after = [[1.0]] * b + [[0.0]] * c + [[1.0]] * (n - b - c)
        p = paired_difference(before, after)
        assert p.difference.ci is not None
        held += p.difference.ci[0] <= truth <= p.difference.ci[1]
        above += p.difference.ci[0] > 0.0
        small += p.p_value < 0.05
    return held / runs, above / runs, small / runs


@pytest.mark.parametrize("changed", [0.02, 0.08])
def test_the_paired_interval_holds_the_truth_and_finds_its_minimal_effect(changed: float) -> None:
    """C48: at 1319 rows of which 2 % or 8 % change by chance alone, false alarms stay under 5 % and power is 80 %."""
    held, above, small = simulate(1319, changed / 2, changed / 2, 400)
    assert held >= 0.93
    assert above <= 0.05
    assert small <= 0.06
    effect = minimal_detectable_effect(math.sqrt(changed / 1319))
    _, above, _ = simulate(1319, (changed + effect) / 2, (changed - effect) / 2, 400)
    assert 0.72 <= above <= 0.9
