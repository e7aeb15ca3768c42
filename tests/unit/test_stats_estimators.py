"""pass@k, maj@k, clustered errors and intervals, against hand-computed values and brute force."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_areal_eval.stats.estimators import clustered_mean, maj_at_k, pass_at_k, quantile


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 5 / 6), (4, 0, 4, 0.0), (4, 4, 1, 1.0), (10, 3, 5, 1 - 21 / 252)],
)
def test_pass_at_k_of_known_counts(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1), (0, 0, 1)])
def test_pass_at_k_is_never_divided_by_draws_that_were_not_made(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="episodes"):
        pass_at_k(n, c, k)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    subsets = list(itertools.combinations(right, k))
    brute = sum(any(s) for s in subsets) / len(subsets)
    assert pass_at_k(len(right), sum(right), k) == pytest.approx(brute, abs=1e-12)


@settings(deadline=None)
@given(st.integers(1, 300), st.data())
def test_pass_at_k_is_bounded_and_grows_with_k_and_with_c(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    values = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert values == sorted(values)
    assert 0.0 <= values[0] <= values[-1] <= 1.0
    assert values[0] == pytest.approx(c / n)
    assert values[-1] == (1.0 if c else 0.0)
    if c < n:
        assert all(pass_at_k(n, c + 1, k) >= values[k - 1] for k in (1, n))


@pytest.mark.parametrize(
    ("votes", "k", "expected"),
    [
        ([("7", True), ("7", True), ("8", False)], 3, 1.0),
        ([("8", False), ("8", False), ("7", True)], 3, 0.0),
        ([("7", True), ("8", False)], 2, 0.5),
        ([("7", True), ("8", False), ("9", False)], 3, 1 / 3),
        ([("8", False), ("7", True), ("7", True)], 1, 0.0),
    ],
)
def test_maj_at_k_splits_ties_evenly(votes: list[tuple[str | None, bool]], k: int, expected: float) -> None:
    assert maj_at_k(votes, k) == pytest.approx(expected)


def test_episodes_without_an_answer_do_not_vote() -> None:
    assert maj_at_k([(None, False), ("", False), (None, False), ("7", True)], 4) == 1.0


def test_no_answer_wins_only_where_no_episode_has_one() -> None:
    assert maj_at_k([(None, False), (" ", False)], 2) == 0.0


def test_blanks_around_an_answer_make_no_other_answer() -> None:
    assert maj_at_k([("7", True), (" 7\n", True), ("8", False)], 3) == 1.0


@pytest.mark.parametrize("k", [0, 3])
def test_maj_at_k_needs_k_episodes(k: int) -> None:
    with pytest.raises(ValueError, match="needs at least"):
        maj_at_k([("7", True), ("8", False)], k)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([None, "1", "2", "3"]), st.booleans()), min_size=1, max_size=12))
def test_maj_at_k_is_bounded_and_deaf_to_order(votes: list[tuple[str | None, bool]]) -> None:
    shuffled = random.Random(0).sample(votes, len(votes))
    value = maj_at_k(votes, len(votes))
    assert 0.0 <= value <= 1.0
    assert maj_at_k(shuffled, len(votes)) == pytest.approx(value)


def test_the_error_of_fourteen_right_of_307() -> None:
    """C32: it is 0.0119, not 0.0."""
    estimate = clustered_mean([[1.0]] * 14 + [[0.0]] * 293, proportion=True)
    assert estimate is not None
    assert estimate.value == 14 / 307
    assert estimate.se is not None
    assert estimate.se == pytest.approx(math.sqrt(14 / 307 * 293 / 307 / 306))
    assert round(estimate.se, 4) == 0.0119


def test_repeats_of_one_item_are_one_cluster() -> None:
    """Four copies of each reward know no more than one: same mean, same error, same interval."""
    once = [[0.0], [1.0], [1.0], [0.5], [0.25]]
    assert (a := clustered_mean(once)) is not None
    assert (b := clustered_mean([group * 4 for group in once])) is not None
    assert (b.value, b.n, b.count) == (a.value, 5, 20)
    assert b.se == pytest.approx(a.se)
    assert b.ci == pytest.approx(a.ci)


def test_value_and_error_come_from_the_same_estimator() -> None:
    """C30: with unequal numbers of episodes both weigh episodes, the error as a cluster-robust ratio."""
    estimate = clustered_mean([[1.0, 1.0, 1.0], [0.0]])
    assert estimate is not None
    assert estimate.value == 0.75
    # residual sums per item: 3 * 0.25 and -0.75; sqrt(2/1 * (0.75**2 + 0.75**2)) / 4
    assert estimate.se == pytest.approx(0.375)


def test_a_hand_computed_student_interval() -> None:
    estimate = clustered_mean([[1.0], [2.0], [3.0], [4.0]])
    assert estimate is not None
    se = math.sqrt(5 / 3 / 4)
    assert estimate.se == pytest.approx(se)
    # t(0.975, 3) = 3.182446305284263
    assert estimate.ci == pytest.approx((2.5 - 3.182446305284263 * se, 2.5 + 3.182446305284263 * se))


def test_the_interval_of_a_proportion_stays_within_its_range() -> None:
    estimate = clustered_mean([[0.9], [1.0], [0.2]], proportion=True)
    assert estimate is not None
    assert estimate.ci is not None
    assert estimate.ci[1] == 1.0


@pytest.mark.parametrize("n", [1, 2, 20, 1319])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_right_and_all_wrong_still_have_an_interval(n: int, value: float) -> None:
    from scipy.stats import binomtest

    estimate = clustered_mean([[value]] * n, proportion=True)
    assert estimate is not None
    expected = binomtest(round(value * n), n).proportion_ci(method="wilson")
    assert estimate.ci == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert estimate.se == (None if n == 1 else 0.0)


@pytest.mark.parametrize(("right", "n"), [(14, 307), (1318, 1319), (1, 2), (189, 200)])
def test_right_or_wrong_items_get_wilsons_interval(right: int, n: int) -> None:
    from scipy.stats import binomtest

    estimate = clustered_mean([[1.0]] * right + [[0.0]] * (n - right), proportion=True)
    assert estimate is not None
    expected = binomtest(right, n).proportion_ci(method="wilson")
    assert estimate.ci == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_an_open_scale_without_spread_has_no_interval() -> None:
    assert (constant := clustered_mean([[3.0]] * 5)) is not None
    assert (constant.se, constant.ci) == (0.0, None)
    assert (single := clustered_mean([[3.0, 4.0]])) is not None
    assert (single.se, single.ci) == (None, None)


def test_rounding_is_no_spread() -> None:
    """A third of 3 * 0.0067... is not 0.0067... to the last bit, and an interval of 1e-18 would be a lie."""
    x = 0.0067497631907460515
    estimate = clustered_mean([[x], [x, x, x]], proportion=True)
    assert estimate is not None
    assert estimate.se == 0.0
    assert estimate.ci is not None
    assert estimate.ci[1] > 0.5


def test_nothing_has_no_mean() -> None:
    assert clustered_mean([]) is None
    assert clustered_mean([[], []]) is None


_UNIT = st.floats(0, 1).filter(lambda x: x == 0 or x > 1e-9)


@settings(deadline=None)
@given(st.lists(st.lists(_UNIT, min_size=1, max_size=4), min_size=1, max_size=20))
def test_a_proportion_is_bounded_and_its_interval_holds_it(groups: list[list[float]]) -> None:
    """C32: the error is 0.0 only where all items are equal."""
    estimate = clustered_mean(groups, proportion=True)
    assert estimate is not None
    assert estimate.ci is not None
    values = [x for group in groups for x in group]
    assert min(values) <= estimate.value <= max(values)
    assert 0.0 <= estimate.ci[0] <= estimate.value <= estimate.ci[1] <= 1.0
    means = [math.fsum(group) / len(group) for group in groups]
    assert (estimate.se is None) == (len(groups) == 1)
    if len(groups) > 1:
        assert (estimate.se == 0.0) == (max(means) - min(means) <= 1e-12 * max(means))
        assert estimate.ci[1] > estimate.ci[0]


def test_quantiles_interpolate() -> None:
    assert [quantile([1.0, 2.0, 4.0], q) for q in (0.0, 0.5, 0.75, 1.0)] == [1.0, 2.0, 3.0, 4.0]
    assert quantile([5.0], 0.9) == 5.0
