"""Gates decided on an evaluation's summary.

Invariant: a gate never passes on nothing.  Where no episode finished, or the metric has no value, it fails and says
why; where the run covers only a chosen part of the evaluation, it is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pytest_areal_eval.errors import ConfigError, UserError
from pytest_areal_eval.stats.estimators import Z95, Estimate
from pytest_areal_eval.stats.gates import RATES, Gate, nearest
from pytest_areal_eval.stats.power import POWER, detection_power, minimal_detectable_effect, spread
from pytest_areal_eval.stats.summary import Summary

Outcome = Literal["pass", "fail", "skip", "inconclusive"]
Policy = Literal["point", "interval"]

_NEGATED = {">=": "<", ">": "<=", "<=": ">", "<": ">=", "==": "!="}
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Baseline:
    """The run that ``baseline`` means in a gate.

    Attributes:
        name: for messages.
        summary: its numbers over the items that both runs have.
        differences: by metric, this run's value minus the baseline's, paired by item.
    """

    name: str
    summary: Summary
    differences: Mapping[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What became of a gate.

    Attributes:
        gate: the gate.
        outcome: ``inconclusive`` only under the interval policy.
        value: the metric's value, None where there is none.
        se: its standard error, where it has one.
        n: items that it rests on.
        message: one line for a person.
        mde: the smallest difference that this run finds with 80 % power, under the interval policy.
    """

    gate: Gate
    outcome: Outcome
    value: float | None
    se: float | None
    n: int
    message: str
    mde: float | None = None

    def to_dict(self, evaluation: str) -> dict[str, Any]:
        """For ``run.json``."""
        plain = {name: getattr(self, name) for name in ("outcome", "value", "se", "n", "message", "mde")}
        return {"evaluation": evaluation, "gate": str(self.gate), **plain}


def decide(
    gate: Gate,
    summary: Summary,
    *,
    partial_reason: str | None = None,
    policy: Policy = "point",
    baseline: Baseline | None = None,
) -> Verdict:
    """Decide one gate.

    Args:
        gate: the condition.
        summary: the evaluation's numbers.
        partial_reason: why the run covers only a chosen part of the evaluation; the gate is then skipped.
        policy: ``point`` compares the value; ``interval`` passes or fails only where the whole 95 % interval does.
            A rate is a fact of this run, not an estimate, and ``==`` asks for a point: both are always compared.
        baseline: what ``baseline`` in the gate means.  Where it has the metric's paired difference, that one's
            interval decides under ``interval``: it is two to four times narrower than the score's own.

    Raises:
        ConfigError: there is no such metric, ``pass@K`` asks for more draws than were made, or there is no baseline.
    """
    measured = _measure(summary)
    estimate = measured.get(gate.metric)
    if partial_reason is not None:
        return _verdict(gate, "skip", summary, estimate, f"{gate} skipped: {partial_reason}")
    _check_draws(gate, summary)
    nothing = _why_nothing(gate, summary)
    if nothing:
        return _verdict(gate, "fail", summary, None, f"{gate} fails: {nothing}")
    if estimate is None:
        raise _unknown(gate, summary, [name for name, known in measured.items() if known])
    compared = _change(gate, summary, estimate, baseline) if gate.from_baseline else estimate
    outcome, mde, note = _outcome(gate, compared, policy)
    basis = _basis(gate, summary, estimate)
    if gate.from_baseline and baseline is not None:
        basis = f"{gate.metric} {estimate.value:.4f}, baseline {baseline.name}, {basis}"
    if mde is not None:
        basis += f", MDE {mde:.3g} at {POWER:.0%} power"
    message = f"{_relation(gate, compared.value)} ({basis}){note}"
    return replace(_verdict(gate, outcome, summary, estimate, message), mde=mde)


def undecided(gate: Gate, summary: Summary, error: UserError) -> Verdict:
    """A gate that cannot be decided has failed; the message is the error, on one line."""
    return Verdict(gate, "fail", None, None, summary.n_items, ". ".join(filter(None, (str(error.args[0]), error.hint))))


def _change(gate: Gate, summary: Summary, estimate: Estimate, baseline: Baseline | None) -> Estimate:
    """The metric's value minus the baseline's: paired by item where that is known, else of two separate estimates."""
    if baseline is None:
        raise ConfigError(f"gate {str(gate)!r}: there is no baseline", "Give the run to compare with: --baseline=RUN")
    found = baseline.differences.get(gate.metric)
    if found is None:
        known = _measure(baseline.summary).get(gate.metric)
        if known is None:
            raise ConfigError(f"gate {str(gate)!r}: the baseline {baseline.name} has no {gate.metric}")
        found = _minus(estimate, known)
    if math.isclose(found.value, gate.threshold, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        return replace(found, value=gate.threshold)  # 0.72 - 0.73 is not -0.01 in binary
    return found


def _minus(a: Estimate, b: Estimate) -> Estimate:
    value, spreads = a.value - b.value, (spread(a), spread(b))
    if spreads[0] is None or spreads[1] is None:
        is_fact = a.se is None and a.ci is not None
        return Estimate(value, None, (value, value) if is_fact else None, a.n, a.count)
    se = math.hypot(spreads[0], spreads[1])
    return Estimate(value, se, (value - Z95 * se, value + Z95 * se), a.n, a.count)


def _check_draws(gate: Gate, summary: Summary) -> None:
    if gate.k is not None and gate.k not in summary.ks:
        hint = f"Run with --n-samples={gate.k} or more."
        if gate.k <= summary.n_samples:
            hint = f"The summary was asked for k in {list(summary.ks)} only: give summarize ks=[{gate.k}]."
        raise ConfigError(
            f"gate {str(gate)!r}: {gate.metric} was not computed, n_samples is {summary.n_samples}",
            hint,
        )


def _why_nothing(gate: Gate, summary: Summary) -> str:
    """Why the metric has no value in this run; empty where it has one, or is no metric of ours."""
    if not summary.requested:
        return "no episode finished"
    if _measure(summary).get(gate.metric):
        return ""
    if not summary.scored:
        return f"no episode was scored ({', '.join(f'{count} {status}' for status, count in summary.counts.items())})"
    if gate.metric == "reward_completed":
        return "no scored episode answered within the token limit"
    if gate.k and gate.k in summary.pass_at:
        return "no episode has an extracted answer (a reward function tells it in a Score)"
    return f"no item has {gate.k} finished episodes" if gate.k else ""


def _outcome(gate: Gate, estimate: Estimate, policy: Policy) -> tuple[Outcome, float | None, str]:
    """The outcome, the minimal detectable effect where an interval decided, and what is to be said of that."""
    is_fact = estimate.ci is not None and estimate.ci[0] == estimate.ci[1]
    if policy == "point" or gate.op == "==" or is_fact:
        return ("pass" if gate.holds(estimate.value) else "fail"), None, ""
    se = spread(estimate)
    if estimate.ci is None or se is None:
        return "inconclusive", None, ": inconclusive, its spread is unknown"
    mde = minimal_detectable_effect(se)
    ends = [gate.holds(end) for end in estimate.ci]
    if all(ends):
        return "pass", mde, ""
    if not any(ends):
        return "fail", mde, ""
    interval, margin = "[{:.4g}, {:.4g}]".format(*estimate.ci), abs(estimate.value - gate.threshold)
    power = f"{detection_power(margin, se):.0%} power for a true margin of {margin:.3g}"
    return "inconclusive", mde, f": inconclusive, the 95 % interval is {interval}; {power}"


def _verdict(gate: Gate, outcome: Outcome, summary: Summary, estimate: Estimate | None, message: str) -> Verdict:
    value, se = (estimate.value, estimate.se) if estimate else (None, None)
    return Verdict(gate, outcome, value, se, estimate.n if estimate else summary.n_items, message)


def _measure(summary: Summary) -> dict[str, Estimate | None]:
    """Every metric that a gate can name; a name of ours hides a workflow's metric of the same name."""

    def fact(value: float | None) -> Estimate | None:
        return None if value is None else Estimate(value, None, (value, value), summary.n_items, summary.requested)

    return {
        **summary.metrics,
        "reward": summary.headline,
        "reward_scored": summary.scored_only,
        "reward_completed": summary.completed_only,
        **{f"pass@{k}": estimate for k, estimate in summary.pass_at.items()},
        **{f"maj@{k}": estimate for k, estimate in summary.maj_at.items()},
        **{name: fact(getattr(summary, name)) for name in (*RATES, "missed_rate", "mean_output_tokens")},
    }


def _relation(gate: Gate, value: float) -> str:
    """``reward 0.6982 < 0.72``, with as many digits as it takes for the printed relation to be true."""
    typed = gate.text.split(" ", 2)[2]
    name, form = (f"{gate.metric} - baseline", "+") if gate.from_baseline else (gate.metric, "")
    if gate.from_baseline:
        typed = typed.removeprefix("baseline").replace(" ", "") or "0"
    sign = gate.op if gate.holds(value) else _NEGATED[gate.op]
    for digits in range(4, 18):
        shown = f"{value:{form}.{digits}f}" if digits < 17 else repr(value)
        if gate.holds(float(shown)) == gate.holds(value):
            break
    return f"{name} {shown} {sign} {typed}"


def _basis(gate: Gate, summary: Summary, estimate: Estimate) -> str:
    if gate.metric in RATES:
        return f"{round(estimate.value * summary.requested)} of {summary.requested} episodes"
    if gate.metric == "missed_rate":
        return f"{summary.missed} of {summary.n_items} items"
    unfinished = "" if summary.n_items == summary.n_selected else f" of {summary.n_selected}"
    se = "" if estimate.se is None else f", se {estimate.se:.3g}"
    return f"n={estimate.n}{unfinished}, k={summary.n_samples}{se}"


def _unknown(gate: Gate, summary: Summary, names: list[str]) -> ConfigError:
    close = nearest(gate.metric, names)
    guess = f" (did you mean {close!r}?)" if close else ""
    return ConfigError(
        f"gate {str(gate)!r}: {summary.name} has no metric {gate.metric!r}{guess}",
        f"Its metrics: {', '.join(sorted(names))}.",
    )
