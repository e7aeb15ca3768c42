"""One evaluation's numbers: what is counted where, and that nothing leaves the denominator."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.stats import EpisodeResult, ItemResult, Summary, summarize

S = EpisodeStatus
WITHOUT_REWARD = [status for status in S if status.kind == "error" and status is not S.CANCELLED]


def scored(reward: float = 1.0, **fields: Any) -> EpisodeResult:
    return EpisodeResult(S.SCORED, reward, **fields)


def items(*groups: Sequence[EpisodeResult]) -> list[ItemResult]:
    return [ItemResult(str(i), tuple(group)) for i, group in enumerate(groups)]


def summary(*groups: Sequence[EpisodeResult], **settings: Any) -> Summary:
    n = len(groups)
    defaults = {"n_samples": max(map(len, groups), default=1), "n_selected": n, "n_total": n}
    return summarize("gsm8k", items(*groups), **{**defaults, **settings})


def test_errors_stay_in_the_denominator_and_are_shown() -> None:
    """C1, C2: 10 rows of which 3 raise and 7 are right score 0.7, and 1.0 over the scored ones, said apart."""
    s = summary(*[[scored()]] * 7, *[[EpisodeResult(S.WORKFLOW_ERROR)]] * 3)
    assert (s.requested, s.scored, s.grader_faults, s.errors) == (10, 7, 0, 3)
    assert (s.reward, s.reward_scored, s.error_rate) == (0.7, 1.0, 0.3)
    assert s.counts == {S.SCORED: 7, S.WORKFLOW_ERROR: 3}


def test_a_graders_fault_counts_zero_and_has_a_rate_of_its_own() -> None:
    """C12: it is neither a wrong answer nor an error of the run."""
    s = summary([scored()], [EpisodeResult(S.GRADER_TIMEOUT, 0.0)], [EpisodeResult(S.GRADER_ERROR, 0.0)], [scored()])
    assert (s.reward, s.reward_scored) == (0.5, 1.0)
    assert (s.fault_rate, s.error_rate, s.grader_faults) == (0.5, 0.0, 2)


def test_rows_and_summary_recompute_to_the_same_number() -> None:
    """C3: the headline is the mean of the rows' own rewards."""
    rows = items([scored(0.25)], [EpisodeResult(S.TIMEOUT)], [EpisodeResult(S.TRUNCATED, 0.5)])
    s = summarize("x", rows, n_samples=1, n_selected=3, n_total=3)
    assert s.reward == sum(row.reward or 0.0 for row in rows) / 3 == 0.25


def test_runaways_and_failed_requests_do_not_look_like_wrong_answers() -> None:
    """C4: five answers at the limit and two lost requests each have their rate."""
    cut = EpisodeResult(S.TRUNCATED, 0.0, stop_reason="length")
    s = summary(*[[scored()]] * 3, *[[cut]] * 5, *[[EpisodeResult(S.ENGINE_LOST)]] * 2)
    assert (s.truncation_rate, s.error_rate, s.reward) == (0.5, 0.2, 0.3)


def test_truncation_shows_beside_the_score_of_the_completed() -> None:
    """C5: 37 % at the limit; the headline is 0.69, the completed ones score 0.956."""
    cut = [[EpisodeResult(S.TRUNCATED, 0.24, stop_reason="length")]] * 37
    s = summary(*cut, *[[scored(0.956, stop_reason="stop")]] * 63)
    assert summary([scored(0.5)], [scored(1.0, stop_reason="length")]).reward_completed == 0.5
    assert s.reward == pytest.approx(0.37 * 0.24 + 0.63 * 0.956)
    assert s.reward_completed == pytest.approx(0.956)
    assert s.truncation_rate == 0.37


def test_counts_are_in_the_machine_readable_summary() -> None:
    """C6: 26 of 600 truncated must not hide in a side file."""
    cut = EpisodeResult(S.TRUNCATED, 0.0, stop_reason="length")
    data = json.loads(json.dumps(summary(*[[cut]] * 26, *[[scored()]] * 574).to_dict(), allow_nan=False))
    assert data["counts"] == {"truncated": 26, "scored": 574}
    assert data["cut"] == 26
    assert data["truncation_rate"] == pytest.approx(26 / 600)
    assert data["requested"] == 600


def test_an_empty_answer_is_not_a_wrong_one() -> None:
    """C7: reasoning up to the limit and no content is "empty", and it was cut as well."""
    empty = EpisodeResult(S.EMPTY, 0.0, stop_reason="length")
    s = summary(*[[empty]] * 11, *[[scored(0.0)]] * 2, *[[scored()]] * 12)
    assert (s.empty_rate, s.truncation_rate, s.reward) == (11 / 25, 11 / 25, 12 / 25)


def test_a_run_in_which_nothing_was_scored_has_no_score() -> None:
    """C10: an unreachable endpoint is not a model that scores 0.0."""
    s = summary(*[[EpisodeResult(S.ENGINE_LOST)]] * 5, ks=[1])
    assert (s.reward, s.reward_se, s.reward_ci, s.pass_at) == (None, None, None, {})
    assert (s.error_rate, s.missed) == (1.0, 5)


def test_all_wrong_is_a_score_of_zero() -> None:
    """C11: 0.0 is a measurement, with an interval that has a width."""
    s = summary(*[[scored(0.0)]] * 20)
    assert s.reward == 0.0
    assert s.to_dict()["reward"] == 0.0
    assert s.reward_ci is not None
    assert s.reward_ci[1] > 0.1


def test_no_results_at_all_make_a_summary_without_values() -> None:
    s = summary(n_selected=10, n_total=10)
    assert (s.reward, s.error_rate, s.missed_rate, s.mean_output_tokens, s.latency_s) == (None, None, None, None, {})
    assert (s.n_items, s.requested) == (0, 0)


def test_an_id_that_occurs_twice_is_refused() -> None:
    """C34: 22 rows padded to 24 are an internal error that names the rows."""
    doubled = [ItemResult(str(i % 22), (scored(),)) for i in range(24)]
    with pytest.raises(ValueError, match="2 items have more than one result: 0, 1"):
        summarize("x", doubled, n_samples=1, n_selected=24, n_total=24)


def test_more_episodes_or_items_than_were_asked_for_are_refused() -> None:
    """C34"""
    with pytest.raises(ValueError, match="item 0 has 2 of 1 episodes"):
        summary([scored(), scored()], n_samples=1)
    with pytest.raises(ValueError, match="2 results for 1 selected"):
        summary([scored()], [scored()], n_selected=1)


def test_cancelled_episodes_are_counted_apart_from_everything() -> None:
    cancelled = EpisodeResult(S.CANCELLED, output_tokens=99)
    s = summary([scored(), cancelled], [cancelled, cancelled], n_selected=3, n_total=9)
    assert (s.n_items, s.n_selected, s.n_total, s.requested, s.cancelled) == (1, 3, 9, 1, 3)
    assert (s.reward, s.error_rate, s.output_tokens, s.missed) == (1.0, 0.0, 0, 0)
    assert S.CANCELLED not in s.counts


def test_pass_and_maj_are_given_for_powers_of_two_and_n() -> None:
    group = [scored(1.0, answer="7"), *[scored(0.0, answer="8")] * 2, *[scored(0.0, answer="9")] * 3]
    s = summary(group, group)
    assert list(s.pass_at) == list(s.maj_at) == [1, 2, 4, 6]
    assert [round(e.value, 6) for e in s.pass_at.values()] == [round(x, 6) for x in (1 / 6, 1 / 3, 2 / 3, 1.0)]
    assert [e.value for e in s.maj_at.values()] == [1.0, 0.5, 0.0, 0.0]


def test_a_single_episode_an_item_has_no_pass_at_k_unless_wanted() -> None:
    assert summary([scored()], [scored(0.0)]).pass_at == {}
    assert summary([scored()], [scored(0.0)], ks=[1, 4]).pass_at[1].value == 0.5


def test_pass_at_k_leaves_out_items_with_fewer_than_k_episodes() -> None:
    cancelled = EpisodeResult(S.CANCELLED)
    s = summary([scored(), scored(0.0)], [scored(0.0), cancelled])
    assert (s.pass_at[2].value, s.pass_at[2].n) == (1.0, 1)
    assert (s.pass_at[1].value, s.pass_at[1].n) == (0.25, 2)


def test_an_error_is_a_draw_that_did_not_pass() -> None:
    s = summary([scored(), EpisodeResult(S.TIMEOUT)])
    assert s.pass_at[1].value == 0.5


def test_without_extracted_answers_there_is_no_majority() -> None:
    assert summary([scored(), scored()]).maj_at == {}


def test_partial_credit_below_the_pass_mark_does_not_pass() -> None:
    group = [scored(0.5), scored(0.9)]
    assert summary(group).pass_at[2].value == 0.0
    assert summary(group, pass_mark=0.9).pass_at[2].value == 1.0
    assert summary(group).missed == 1
    assert summary(group, pass_mark=0.7).missed == 0


def test_tokens_and_latencies_add_up() -> None:
    s = summary(
        [scored(input_tokens=10, output_tokens=100, latency_s=1.0)],
        [scored(input_tokens=10, output_tokens=300, latency_s=3.0)],
        [EpisodeResult(S.TIMEOUT, latency_s=5.0)],
    )
    assert (s.input_tokens, s.output_tokens) == (20, 400)
    assert (s.mean_output_tokens, s.median_output_tokens) == (200.0, 200.0)
    assert s.latency_s == pytest.approx({"p50": 3.0, "p90": 4.6, "p99": 4.96, "max": 5.0})


def test_a_metric_is_averaged_over_the_episodes_that_have_it() -> None:
    s = summary([scored(metrics={"turns": 1.0})], [scored(metrics={"turns": 4.0})], [scored()])
    assert (s.metrics["turns"].value, s.metrics["turns"].count) == (2.5, 2)


def test_rewards_beyond_one_have_an_interval_that_is_not_clipped() -> None:
    s = summary([scored(0.0)], [scored(10.0)])
    assert s.reward_ci is not None
    assert s.reward_ci[1] > 10.0


@st.composite
def any_episode(draw: st.DrawFn) -> EpisodeResult:
    status = draw(st.sampled_from(S))
    reward = {"scored": draw(st.floats(0, 1)), "grader_fault": 0.0, "error": None}[status.kind]
    answer = draw(st.sampled_from([None, "1", "2"]))
    return EpisodeResult(status, reward, answer, output_tokens=draw(st.integers(0, 9)), stop_reason="length")


@settings(deadline=None)
@given(st.lists(st.lists(any_episode(), max_size=4), max_size=8))
def test_requested_is_scored_and_faults_and_errors(groups: list[list[EpisodeResult]]) -> None:
    """C1"""
    s = summary(*groups, n_samples=4)
    assert s.requested == s.scored + s.grader_faults + s.errors
    assert s.requested + s.cancelled == sum(map(len, groups))
    assert s.errors == sum(s.counts.get(status, 0) for status in WITHOUT_REWARD)
    if s.reward is not None and s.reward_scored is not None:
        assert 0.0 <= s.reward <= s.reward_scored + 1e-12
        assert s.reward * s.requested == pytest.approx(s.reward_scored * s.scored)
    values = [e.value for e in s.pass_at.values() if e.n == s.n_items]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values))
    json.dumps(s.to_dict(), allow_nan=False)


@settings(deadline=None)
@given(st.lists(st.lists(any_episode(), max_size=3), max_size=6), st.randoms())
def test_the_order_of_completion_changes_nothing(groups: list[list[EpisodeResult]], rng: Any) -> None:
    rows = items(*groups)
    settings: dict[str, Any] = {"n_samples": 3, "n_selected": len(rows), "n_total": len(rows)}
    a = summarize("x", rows, **settings).to_dict()
    b = summarize("x", rng.sample(rows, len(rows)), **settings).to_dict()
    assert a["counts"] == b["counts"]
    for key in ("reward", "reward_se", "missed", "output_tokens"):
        assert (a[key] is None) == (b[key] is None)
        assert a[key] is None or math.isclose(a[key], b[key], rel_tol=1e-9, abs_tol=1e-15)
