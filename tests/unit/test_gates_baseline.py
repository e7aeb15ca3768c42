"""Gates against a baseline, and how often a gate is wrong at the score distributions that CI systems published."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.stats import (
    Baseline,
    EpisodeResult,
    Gate,
    ItemResult,
    Summary,
    decide,
    parse_gate,
    split_gate_option,
    summarize,
)
from pytest_areal_eval.stats.compare import paired_difference


def summary(right: int, of: int) -> Summary:
    rewards = [1.0] * right + [0.0] * (of - right)
    items = [ItemResult(str(i), (EpisodeResult(EpisodeStatus.SCORED, r),)) for i, r in enumerate(rewards)]
    return summarize("gsm8k", items, n_samples=1, n_selected=of, n_total=of)


def baseline(right: int, of: int, better: int | None = None, worse: int = 0) -> Baseline:
    """``right`` of ``of``; where ``better`` is given, the candidate differs from it on those items."""
    if better is None:
        return Baseline("monday", summary(right, of))
    before = [[0.0]] * better + [[1.0]] * worse + [[1.0]] * (of - better - worse)
    after = [[1.0]] * better + [[0.0]] * worse + [[1.0]] * (of - better - worse)
    return Baseline("monday", summary(right, of), {"reward": paired_difference(before, after).difference})


@pytest.mark.parametrize(
    ("text", "threshold", "shown"),
    [
        ("reward >= baseline", 0.0, "reward >= baseline"),
        ("reward>=baseline-0.01", -0.01, "reward >= baseline - 0.01"),
        ("pass@4 > baseline + 1%", 0.01, "pass@4 > baseline + 1%"),
        ("error_rate <= baseline", 0.0, "error_rate <= baseline"),
    ],
)
def test_a_threshold_may_count_from_the_baseline(text: str, threshold: float, shown: str) -> None:
    gate = parse_gate(text)
    assert gate == Gate(gate.metric, gate.op, threshold, "", from_baseline=True)
    assert str(gate) == shown
    assert parse_gate(shown) == gate
    assert split_gate_option(f"test_gsm:{text}") == ("test_gsm", gate)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reward >= baseline 0.01", r"expected \+ or - and a number, or the end at position 20, found '0.01'"),
        ("reward >= baseline -", "expected a number or a percentage at position 21, found the end"),
        ("reward >= baseline - -1", "expected a number or a percentage at position 22, found '-1'"),
        ("reward >= baselines", "expected a number or a percentage at position 11, found 'baselines'"),
        ("reward >= baseline - 1e999", "not a finite number"),
        ("reward >= baseline - 0.1 x", "expected the end"),
    ],
)
def test_a_threshold_that_is_none_says_where(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_gate(text)


def test_the_difference_decides_and_both_values_are_shown() -> None:
    v = decide(parse_gate("reward >= baseline - 0.01"), summary(70, 100), baseline=baseline(72, 100))
    assert (v.outcome, v.value) == ("fail", 0.7)
    assert v.message == "reward - baseline -0.0200 < -0.01 (reward 0.7000, baseline monday, n=100, k=1, se 0.0461)"


def test_a_difference_of_exactly_the_margin_holds() -> None:
    """0.72 - 0.73 is -0.010000000000000009."""
    v = decide(parse_gate("reward >= baseline - 0.01"), summary(72, 100), baseline=baseline(73, 100))
    assert v.outcome == "pass"


def test_a_rate_is_held_against_the_baselines_rate() -> None:
    v = decide(parse_gate("error_rate <= baseline"), summary(1, 2), baseline=baseline(1, 2), policy="interval")
    assert v.outcome == "pass"
    assert v.mde is None


def test_without_a_baseline_the_gate_is_no_pass() -> None:
    with pytest.raises(ConfigError, match="there is no baseline"):
        decide(parse_gate("reward >= baseline"), summary(2, 2))
    with pytest.raises(ConfigError, match="the baseline monday has no reward"):
        decide(parse_gate("reward >= baseline"), summary(2, 2), baseline=Baseline("monday", summary(0, 0)))


def test_pairing_decides_what_two_separate_scores_cannot() -> None:
    """D6: with a baseline stored per row, the detectable effect is two to four times smaller."""
    gate, now = parse_gate("reward >= baseline - 0.01"), summary(1085, 1319)
    apart = decide(gate, now, policy="interval", baseline=baseline(1120, 1319))
    paired = decide(gate, now, policy="interval", baseline=baseline(1120, 1319, better=12, worse=47))
    assert (apart.outcome, paired.outcome) == ("inconclusive", "fail")
    assert apart.mde is not None
    assert paired.mde is not None
    assert apart.mde > 1.9 * paired.mde


def outcomes(gate: str, of: int, p: float, spread: float = 5.0) -> dict[str, float]:
    """Probability of each outcome under ``interval`` where an item is right with probability ``p``: exact, no draws."""
    shares = dict.fromkeys(("pass", "fail", "inconclusive"), 0.0)
    for right, share in binomial(of, p, spread):
        shares[decide(parse_gate(gate), summary(right, of), policy="interval").outcome] += share
    return shares


def binomial(n: int, p: float, spread: float) -> Iterator[tuple[int, float]]:
    sd = math.sqrt(n * p * (1 - p))
    for k in range(max(0, math.ceil(n * p - spread * sd)), min(n, math.floor(n * p + spread * sd)) + 1):
        log = (
            math.lgamma(n + 1)
            - math.lgamma(k + 1)
            - math.lgamma(n - k + 1)
            + k * math.log(p)
            + (n - k) * math.log(1 - p)
        )
        yield k, math.exp(log)


@pytest.mark.parametrize(
    ("case", "gate", "n", "p", "limit"),
    [
        ("C40", "reward >= 0.935", 200, 0.9443, 0.01),
        ("C44", "reward >= 0.60", 198, 0.62, 0.01),
        ("D6", "reward >= 0.85", 200, 0.86, 0.025),
        ("at the threshold", "reward >= 0.85", 200, 0.85, 0.035),
    ],
)
def test_no_regression_is_no_failure(case: str, gate: str, n: int, p: float, limit: float) -> None:
    """C40, C44: fixed thresholds failed 14 to 30 % of unchanged runs; ``interval`` at most 1 %, and 3.5 % anywhere."""
    assert outcomes(gate, n, p)["fail"] <= limit, case
    point = sum(share for right, share in binomial(n, p, 6.0) if right / n < parse_gate(gate).threshold)
    assert point >= 0.14


def test_a_failing_band_that_overlaps_the_passing_one_never_fails() -> None:
    """C43: runs of one checkpoint gave .807 to .828 at a gate of .82, which failed 14.8 % of them."""
    for right in range(round(0.807 * 1319), round(0.828 * 1319) + 1):
        assert decide(parse_gate("reward >= 0.82"), summary(right, 1319), policy="interval").outcome == "inconclusive"


@pytest.mark.parametrize("gate", ["reward >= 0.855", "reward >= 0.845"])
def test_a_five_point_drop_on_gsm8k_is_a_failure(gate: str) -> None:
    """C42: 1319 rows at .855; a threshold at it, or a point below it."""
    assert outcomes(gate, 1319, 0.805, 4.0)["fail"] >= 0.95


def test_a_five_point_drop_against_a_stored_baseline_is_a_failure() -> None:
    """The same drop, paired: 1.5 % of the items become right, 6.5 % wrong; the margin is two points."""
    sd = math.sqrt(1319 * (0.08 - 0.05**2))
    fails = 0.0
    for change in range(-66 - round(3 * sd), -66 + round(3 * sd) + 1):
        worse = round((106 - change) / 2)
        better = worse + change
        share = math.exp(-((change + 66) ** 2) / (2 * sd**2)) / (sd * math.sqrt(2 * math.pi))
        reference = baseline(1128, 1319, better=better, worse=worse)
        verdict = decide(
            parse_gate("reward >= baseline - 0.02"), summary(1128 + change, 1319), policy="interval", baseline=reference
        )
        fails += share * (verdict.outcome == "fail")
    assert fails >= 0.95


def test_papers_thresholds_are_wrong_both_ways_and_the_message_shows_it() -> None:
    """C42: gemma-27b measures .8550 on 1319 rows; .86 from the paper is inconclusive, not a failure on every run."""
    v = decide(parse_gate("reward >= 0.86"), summary(1128, 1319), policy="interval")
    assert v.outcome == "inconclusive"
    assert "MDE 0.0272 at 80% power" in v.message
    assert "95 % interval is [" in v.message
