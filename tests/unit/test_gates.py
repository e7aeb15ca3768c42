"""Gates: what parses, what is decided, and that nothing passes on nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.stats import (
    EpisodeResult,
    Gate,
    ItemResult,
    Summary,
    Verdict,
    decide,
    parse_gate,
    split_gate_option,
    summarize,
)

S = EpisodeStatus


def summary(right: int, wrong: int, *more: EpisodeResult, **settings: Any) -> Summary:
    episodes = [EpisodeResult(S.SCORED, 1.0)] * right + [EpisodeResult(S.SCORED, 0.0)] * wrong + list(more)
    items = [ItemResult(str(i), (e,)) for i, e in enumerate(episodes)]
    defaults = {"n_samples": 1, "n_selected": len(items), "n_total": len(items)}
    return summarize("gsm8k", items, **{**defaults, **settings})


def verdict(text: str, of: Summary, **settings: Any) -> Verdict:
    return decide(parse_gate(text), of, **settings)


@pytest.mark.parametrize(
    ("text", "metric", "op", "threshold"),
    [
        ("reward >= 0.72", "reward", ">=", 0.72),
        ("  pass@4>.5 ", "pass@4", ">", 0.5),
        ("maj@08 <= 1e-2", "maj@8", "<=", 0.01),
        ("error_rate <= 1%", "error_rate", "<=", 0.01),
        ("reward >= 72%", "reward", ">=", 0.72),
        ("mean_output_tokens < 4096", "mean_output_tokens", "<", 4096.0),
        ("format/ok.strict == +1.", "format/ok.strict", "==", 1.0),
        ("delta > -3", "delta", ">", -3.0),
    ],
)
def test_a_gate_is_a_metric_an_operator_and_a_number(text: str, metric: str, op: str, threshold: float) -> None:
    assert parse_gate(text) == Gate(metric, op, threshold, "")


def test_spacing_makes_no_other_gate() -> None:
    assert str(parse_gate("reward>=0.60")) == str(parse_gate(" reward  >=\t0.60")) == "reward >= 0.60"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a metric's name at position 1, found the end"),
        ("   ", "expected a metric's name at position 4, found the end"),
        ("0.7 <= reward", "expected a metric's name at position 1, found '0.7'"),
        ("reward", "expected one of >=, >, <=, <, == at position 7, found the end"),
        ("reward => 0.7", "expected one of >=, >, <=, <, == at position 8, found '=>'"),
        ("reward = 0.7", "expected one of >=, >, <=, <, == at position 8, found '='"),
        ("reward >=", "expected a number or a percentage at position 10, found the end"),
        ("reward >= nan", "expected a number or a percentage at position 11, found 'nan'"),
        ("reward >= high", "expected a number or a percentage at position 11, found 'high'"),
        ("reward >= 0.7 >= 0.5", "expected the end, since a gate is one comparison with one number at position 15"),
        ("0.5 < reward < 0.7", "expected a metric's name at position 1"),
        ("reward >= 0.7 and x > 1", "found 'and'"),
        ("reward >= ٣", "found '٣'"),
        ("reward >= 1e999", "the threshold 1e999 is not a finite number"),
        ("pass@0 >= 0.5", "'pass@0' needs a whole number of draws"),
        ("pass@ >= 0.5", "'pass@' needs a whole number of draws"),
        ("maj@1.5 >= 0.5", "'maj@1.5' needs a whole number of draws"),
        ("__import__('os') > 1", "expected one of >=, >, <=, <, == at position 11"),
    ],
)
def test_a_malformed_gate_says_where_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gate(text)
    assert message in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "METRIC OP NUMBER" in caught.value.hint or "draws" in str(caught.value)


_GATE_LIKE = st.lists(
    st.sampled_from(["reward", "pass@4", "maj@", ">=", ">", "==", "<", " ", "0.7", "72%", "-", ".", "e9", "nan", ":"])
).map("".join)


@settings(deadline=None)
@given(st.text() | _GATE_LIKE)
@example("reward >= 0.7\x00")
@example("reward >= \ud800")
def test_any_text_is_a_gate_or_a_config_error(text: str) -> None:
    try:
        gate = parse_gate(text)
    except ConfigError:
        return
    assert parse_gate(str(gate)) == gate
    assert math.isfinite(gate.threshold)


@settings(deadline=None)
@given(
    st.from_regex(r"[a-z_]{1,8}(@[1-9][0-9]?)?", fullmatch=True),
    st.sampled_from([">=", ">", "<=", "<", "=="]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " ", "\t "]),
)
def test_every_well_formed_gate_parses_to_its_parts(metric: str, op: str, threshold: float, blank: str) -> None:
    gate = parse_gate(f"{metric}{blank}{op}{blank}{threshold!r}")
    assert (gate.metric, gate.op, gate.threshold) == (metric, op, threshold)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("reward >= 0.7", "*"),
        ("gsm8k:reward>=0.7", "gsm8k"),
        ("evals/test_gsm8k.py::test_gsm8k:reward >= 0.7", "evals/test_gsm8k.py::test_gsm8k"),
        ("test_maths[level:5]: pass@4 > 50%", "test_maths[level:5]"),
        (" gsm8k : reward>=0.7", "gsm8k"),
    ],
)
def test_the_last_colon_divides_name_and_condition(text: str, name: str) -> None:
    found, gate = split_gate_option(text)
    assert found == name
    assert gate.metric in ("reward", "pass@4")


@pytest.mark.parametrize(("text", "message"), [(":reward >= 0.7", "no evaluation's name"), ("gsm8k:", "found the end")])
def test_a_gate_option_without_name_or_condition_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_gate_option(text)


def test_a_failing_gate_says_the_value_its_base_and_its_error() -> None:
    v = verdict("reward >= 0.72", summary(921, 398))
    assert (v.outcome, v.n) == ("fail", 1319)
    assert v.message == "reward 0.6983 < 0.72 (n=1319, k=1, se 0.0126)"
    assert v.value == 921 / 1319


@pytest.mark.parametrize(
    ("text", "outcome", "message"),
    [
        ("reward >= 70%", "pass", "reward 0.7000 >= 70% (n=10, k=1, se 0.153)"),
        ("reward > 0.7", "fail", "reward 0.7000 <= 0.7 (n=10, k=1, se 0.153)"),
        ("reward < 0.7", "fail", "reward 0.7000 >= 0.7 (n=10, k=1, se 0.153)"),
        ("reward <= 0.7", "pass", "reward 0.7000 <= 0.7 (n=10, k=1, se 0.153)"),
        ("reward == 0.7", "pass", "reward 0.7000 == 0.7 (n=10, k=1, se 0.153)"),
        ("reward == 1", "fail", "reward 0.7000 != 1 (n=10, k=1, se 0.153)"),
        ("missed_rate <= 0.3", "pass", "missed_rate 0.3000 <= 0.3 (3 of 10 items)"),
        ("error_rate == 0", "pass", "error_rate 0.0000 == 0 (0 of 10 episodes)"),
    ],
)
def test_the_printed_relation_is_what_was_found(text: str, outcome: str, message: str) -> None:
    v = verdict(text, summary(7, 3))
    assert (v.outcome, v.message) == (outcome, message)


def test_a_value_just_below_the_threshold_is_printed_below_it() -> None:
    assert verdict("reward >= 0.72", summary(581, 226)).message.startswith("reward 0.71995 < 0.72 (")


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(1, 400), st.floats(0, 1), st.sampled_from([">=", ">", "<=", "<", "=="]))
def test_the_printed_relation_is_true(right: int, wrong: int, threshold: float, op: str) -> None:
    gate = Gate("reward", op, threshold, f"reward {op} {threshold!r}")
    v = decide(gate, summary(right, wrong))
    shown, sign = v.message.split()[1:3]
    relation = {">=": gate.threshold <= float(shown), ">": gate.threshold < float(shown)}
    relation |= {"<": not relation[">="], "<=": not relation[">"]}
    relation |= {"==": float(shown) == threshold, "!=": float(shown) != threshold}
    assert relation[sign]
    assert (v.outcome == "pass") == gate.holds(right / (right + wrong))


def test_errors_fail_a_gate_on_their_rate() -> None:
    """C1: three rows that raised are visible to a gate, whatever the score."""
    v = verdict("error_rate <= 1%", summary(7, 0, *[EpisodeResult(S.WORKFLOW_ERROR)] * 3))
    assert (v.outcome, v.message) == ("fail", "error_rate 0.3000 > 1% (3 of 10 episodes)")


def test_truncation_fails_a_gate_on_its_rate() -> None:
    """C5: 37 % of the answers ran into the limit."""
    cut = [EpisodeResult(S.TRUNCATED, 0.0, stop_reason="length")] * 37
    assert verdict("truncation_rate <= 5%", summary(63, 0, *cut)).outcome == "fail"
    assert verdict("reward_completed == 1", summary(63, 0, *cut)).outcome == "pass"


def test_a_gate_on_a_score_of_zero_fails_with_that_score() -> None:
    """C11: a real 0.0 is not "no measurement"."""
    v = verdict("reward >= 0.1", summary(0, 20))
    assert (v.outcome, v.value) == ("fail", 0.0)
    assert v.message.startswith("reward 0.0000 < 0.1 ")
    assert verdict("reward == 0", summary(0, 20)).outcome == "pass"


@pytest.mark.parametrize("text", ["reward >= 0", "error_rate <= 1", "pass@1 >= 0", "turns >= 0", "missed_rate <= 1"])
def test_a_gate_on_no_results_fails_closed(text: str) -> None:
    """C10: nothing answered never passes and never scores."""
    v = verdict(text, summary(0, 0, n_selected=10, n_total=10, ks=[1]))
    assert (v.outcome, v.value) == ("fail", None)
    assert v.message == f"{text} fails: no episode finished"


@pytest.mark.parametrize("text", ["reward >= 0", "pass@1 >= 0", "maj@1 >= 0", "turns < 9", "mean_output_tokens < 9"])
def test_a_gate_where_nothing_was_scored_fails_closed_and_says_why(text: str) -> None:
    """C10: a server that was down is no model that scores 0.0."""
    v = verdict(text, summary(0, 0, *[EpisodeResult(S.ENGINE_LOST)] * 9, EpisodeResult(S.TIMEOUT), ks=[1]))
    assert (v.outcome, v.value) == ("fail", None)
    assert v.message == f"{text} fails: no episode was scored (9 engine_lost, 1 timeout)"


def test_error_rate_is_decided_even_where_nothing_was_scored() -> None:
    v = verdict("error_rate <= 1%", summary(0, 0, EpisodeResult(S.ENGINE_LOST)))
    assert (v.outcome, v.value) == ("fail", 1.0)


def test_a_partial_run_skips_the_gate_with_the_counts() -> None:
    """C39: a threshold of 1319 questions is not decided on 50 of them."""
    v = verdict("reward >= 0.72", summary(20, 30), partial_reason="50 of 1319 items selected by -k")
    assert (v.outcome, v.value) == ("skip", 0.4)
    assert v.message == "reward >= 0.72 skipped: 50 of 1319 items selected by -k"


def test_unfinished_items_show_in_the_message() -> None:
    assert "(n=10 of 12, k=1" in verdict("reward >= 0.5", summary(7, 3, n_selected=12, n_total=12)).message


def test_an_unknown_metric_names_the_nearest_and_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        verdict("rewards >= 0.7", summary(7, 3))
    assert "'rewards >= 0.7': gsm8k has no metric 'rewards' (did you mean 'reward'?)" in str(caught.value)
    assert "error_rate" in caught.value.hint


def test_a_metric_of_the_workflow_can_be_gated() -> None:
    more = [EpisodeResult(S.SCORED, 1.0, metrics={"turns": turns}) for turns in (2.0, 4.0)]
    v = verdict("turns <= 3", summary(0, 0, *more))
    assert (v.outcome, v.value, v.message) == ("pass", 3.0, "turns 3.0000 <= 3 (n=2, k=1, se 1)")


def test_pass_at_k_beyond_the_samples_says_to_raise_them() -> None:
    with pytest.raises(ConfigError, match=r"(?s)pass@4.*n_samples is 1.*--n-samples=4"):
        verdict("pass@4 >= 0.5", summary(7, 3))


def _sampled(**settings: Any) -> Summary:
    group = tuple(EpisodeResult(S.SCORED, reward) for reward in (1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    return summarize("maze", [ItemResult("0", group)], n_samples=6, n_selected=1, n_total=1, **settings)


def test_any_k_up_to_the_samples_can_be_gated_when_the_summary_is_asked_for_it() -> None:
    gate = parse_gate("pass@3 >= 0.5")
    assert gate.k == 3
    assert decide(gate, _sampled(ks=[gate.k])).value == 0.5
    with pytest.raises(ConfigError, match=r"give summarize ks=\[3\]"):
        decide(gate, _sampled())


def test_maj_at_k_without_extracted_answers_fails_and_says_why() -> None:
    v = decide(parse_gate("maj@6 >= 0"), _sampled())
    assert (v.outcome, v.value) == ("fail", None)
    assert "no episode has an extracted answer" in v.message


def test_pass_at_k_that_no_item_reached_fails_and_says_why() -> None:
    group = (EpisodeResult(S.SCORED, 1.0), EpisodeResult(S.CANCELLED))
    s = summarize("maze", [ItemResult("0", group)], n_samples=2, n_selected=1, n_total=1)
    assert "no item has 2 finished episodes" in decide(parse_gate("pass@2 >= 0"), s).message


def test_completed_reward_without_completed_answers_fails_and_says_why() -> None:
    v = verdict("reward_completed >= 0", summary(0, 0, EpisodeResult(S.TRUNCATED, 1.0)))
    assert (v.outcome, v.value) == ("fail", None)
    assert "within the token limit" in v.message


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("reward >= 0.60", "pass"),
        ("reward >= 0.69", "inconclusive"),
        ("reward >= 0.72", "inconclusive"),
        ("reward >= 0.73", "fail"),
        ("reward <= 0.60", "fail"),
        ("reward <= 0.73", "pass"),
        ("error_rate <= 1%", "pass"),
        ("missed_rate <= 0.29", "fail"),
        ("reward == 0.7", "fail"),
    ],
)
def test_the_interval_policy_passes_or_fails_only_beyond_the_noise(text: str, outcome: str) -> None:
    assert verdict(text, summary(921, 398), policy="interval").outcome == outcome


def test_equality_asks_for_the_point_under_either_policy() -> None:
    assert verdict("reward == 1", summary(20, 0), policy="interval").outcome == "pass"


def test_an_inconclusive_gate_shows_its_interval() -> None:
    v = verdict("reward >= 0.72", summary(921, 398), policy="interval")
    assert v.message.endswith(
        "se 0.0126, MDE 0.0354 at 80% power): inconclusive, the 95 % interval is [0.6729, 0.7224]; "
        "41% power for a true margin of 0.0217"
    )


def test_the_interval_policy_without_a_known_spread_is_inconclusive() -> None:
    one = EpisodeResult(S.SCORED, 1.0, metrics={"turns": 2.0})
    assert verdict("turns <= 3", summary(0, 0, one), policy="interval").outcome == "inconclusive"


@pytest.mark.parametrize(
    ("n", "p", "threshold", "at_most"),
    [(200, 0.944, 0.935, 0.01), (200, 0.86, 0.85, 0.025), (198, 0.62, 0.60, 0.025)],
)
def test_the_interval_policy_seldom_fails_an_unchanged_model(
    n: int, p: float, threshold: float, at_most: float
) -> None:
    """C40, C43, C44: gates on the point fail 14 % to 30 % of unchanged runs; summed exactly, not simulated."""
    gate = parse_gate(f"reward >= {threshold}")
    chance = {"point": 0.0, "interval": 0.0}
    for right in range(n + 1):
        mass = math.comb(n, right) * p**right * (1 - p) ** (n - right)
        s = summary(right, n - right)
        chance["point"] += mass * (decide(gate, s, policy="point").outcome == "fail")
        chance["interval"] += mass * (decide(gate, s, policy="interval").outcome == "fail")
    assert chance["interval"] < at_most
    assert chance["point"] > 0.2
