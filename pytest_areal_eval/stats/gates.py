"""Gates: ``METRIC OP NUMBER`` decided on an evaluation's summary.

Invariant: a gate never passes on nothing.  Where no episode finished, or the metric has no value, it fails and says
why; where the run covers only a chosen part of the evaluation, it is skipped.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.stats.estimators import Estimate
from pytest_areal_eval.stats.summary import Summary

Outcome = Literal["pass", "fail", "skip", "inconclusive"]
Policy = Literal["point", "interval"]

_COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": operator.eq}
_NEGATED = {">=": "<", ">": "<=", "<=": ">", "<": ">=", "==": "!="}

_RATES = ("error_rate", "fault_rate", "truncation_rate", "empty_rate")
METRICS = ("reward", "reward_scored", "reward_completed", *_RATES, "missed_rate", "mean_output_tokens")
"""What every summary has, beside ``pass@K`` and ``maj@K``."""

_METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_@./-]*")
_OPERATOR = re.compile(r">=|<=|==|>|<")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?%?")
_DRAWS = re.compile(r"(pass|maj)@([0-9]{1,6})")
_HINT = 'Write METRIC OP NUMBER, for example "reward >= 0.72" or "error_rate <= 1%".'


@dataclass(frozen=True)
class Gate:
    """A condition on an evaluation's aggregate.

    Attributes:
        metric: ``reward``, ``pass@4``, ``error_rate``, ... or a metric of the workflow or of a dict reward.
        op: ``>=``, ``>``, ``<=``, ``<`` or ``==``.
        threshold: a finite number; percentages are divided by 100.
        text: the condition as it was typed, with single spaces; what ``str`` gives.
    """

    metric: str
    op: str
    threshold: float
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def k(self) -> int | None:
        """The K of ``pass@K`` and ``maj@K``, which the summary has to be asked for."""
        match = _DRAWS.fullmatch(self.metric)
        return int(match[2]) if match else None

    def doubt(self, n_samples: int) -> str:
        """What can be said against the gate before the run; empty if nothing can."""
        if self.k is not None and self.k > n_samples:
            return f"gate {str(self)!r} will fail: n_samples is {n_samples}; run with --n-samples={self.k} or more"
        if self.k is None and self.metric not in METRICS and (close := _nearest(self.metric, METRICS)):
            return f"gate {str(self)!r} will fail unless the reward gives a {self.metric!r}; did you mean {close!r}?"
        return ""

    def holds(self, value: float) -> bool:
        """Whether a value meets the condition."""
        return bool(_COMPARE[self.op](value, self.threshold))


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
    """

    gate: Gate
    outcome: Outcome
    value: float | None
    se: float | None
    n: int
    message: str

    def to_dict(self, evaluation: str) -> dict[str, Any]:
        """For ``run.json``."""
        plain = {name: getattr(self, name) for name in ("outcome", "value", "se", "n", "message")}
        return {"evaluation": evaluation, "gate": str(self.gate), **plain}


def parse_gate(text: str) -> Gate:
    """Read ``METRIC OP NUMBER``.

    Raises:
        ConfigError: it is no such condition; the message has the position and what was expected there.
    """
    metric, at = _token(text, 0, _METRIC, "a metric's name")
    op, at = _token(text, at, _OPERATOR, "one of >=, >, <=, <, ==")
    number, at = _token(text, at, _NUMBER, "a number or a percentage")
    if text[at:].strip():
        raise _expected(text, at, "the end, since a gate is one comparison with one number")
    threshold = float(number.rstrip("%")) / (100.0 if number.endswith("%") else 1.0)
    if not math.isfinite(threshold):
        raise ConfigError(f"gate {text!r}: the threshold {number} is not a finite number", _HINT)
    if metric.startswith(("pass@", "maj@")):
        match = _DRAWS.fullmatch(metric)
        if not match or not int(match[2]):
            raise ConfigError(
                f"gate {text!r}: {metric!r} needs a whole number of draws from 1 on, such as pass@4", _HINT
            )
        metric = f"{match[1]}@{int(match[2])}"
    return Gate(metric, op, threshold, f"{metric} {op} {number}")


def split_gate_option(text: str) -> tuple[str, Gate]:
    """Read ``NAME:CONDITION`` or ``CONDITION`` alone, whose name is then ``*``: every evaluation.

    The last colon divides, since a condition has none: names may hold ``::`` and ``[...]``.

    Raises:
        ConfigError: the name is empty or the condition is none.
    """
    name, colon, condition = text.rpartition(":")
    if colon and not name.strip():
        raise ConfigError(f"gate {text!r}: there is no evaluation's name before the colon", _HINT)
    return name.strip() or "*", parse_gate(condition)


def decide(gate: Gate, summary: Summary, *, partial_reason: str | None = None, policy: Policy = "point") -> Verdict:
    """Decide one gate.

    Args:
        gate: the condition.
        summary: the evaluation's numbers.
        partial_reason: why the run covers only a chosen part of the evaluation; the gate is then skipped.
        policy: ``point`` compares the value; ``interval`` passes or fails only where the whole 95 % interval does.
            A rate is a fact of this run, not an estimate, and ``==`` asks for a point: both are always compared.

    Raises:
        ConfigError: there is no such metric, or ``pass@K`` asks for more draws than were made.
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
    outcome, note = _outcome(gate, estimate, policy)
    relation = _relation(gate, estimate.value)
    return _verdict(gate, outcome, summary, estimate, f"{relation} ({_basis(gate, summary, estimate)}){note}")


def _check_draws(gate: Gate, summary: Summary) -> None:
    if gate.k is not None and gate.k not in summary.ks:
        hint = f"Run with --n-samples={gate.k} or more."
        if gate.k <= summary.n_samples:
            hint = f"The summary was asked for k in {list(summary.ks)} only: give summarize ks=[{gate.k}]."
        raise ConfigError(
            f"gate {str(gate)!r} of {summary.name}: {gate.metric} was not computed, n_samples is {summary.n_samples}",
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


def _outcome(gate: Gate, estimate: Estimate, policy: Policy) -> tuple[Outcome, str]:
    if policy == "point" or gate.op == "==":
        return ("pass" if gate.holds(estimate.value) else "fail"), ""
    if estimate.ci is None:
        return "inconclusive", ": inconclusive, its spread is unknown"
    ends = [gate.holds(end) for end in estimate.ci]
    interval = "[{:.4g}, {:.4g}]".format(*estimate.ci)
    if all(ends):
        return "pass", ""
    return ("inconclusive", f": inconclusive, the 95 % interval is {interval}") if any(ends) else ("fail", "")


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
        **{name: fact(getattr(summary, name)) for name in (*_RATES, "missed_rate", "mean_output_tokens")},
    }


def _relation(gate: Gate, value: float) -> str:
    """``reward 0.6982 < 0.72``, with as many digits as it takes for the printed relation to be true."""
    typed = gate.text.rpartition(" ")[2]
    sign = gate.op if gate.holds(value) else _NEGATED[gate.op]
    for digits in range(4, 18):
        shown = f"{value:.{digits}f}" if digits < 17 else repr(value)
        if gate.holds(float(shown)) == gate.holds(value):
            break
    return f"{gate.metric} {shown} {sign} {typed}"


def _basis(gate: Gate, summary: Summary, estimate: Estimate) -> str:
    if gate.metric in _RATES:
        return f"{round(estimate.value * summary.requested)} of {summary.requested} episodes"
    if gate.metric == "missed_rate":
        return f"{summary.missed} of {summary.n_items} items"
    unfinished = "" if summary.n_items == summary.n_selected else f" of {summary.n_selected}"
    se = "" if estimate.se is None else f", se {estimate.se:.3g}"
    return f"n={estimate.n}{unfinished}, k={summary.n_samples}{se}"


def _unknown(gate: Gate, summary: Summary, names: list[str]) -> ConfigError:
    close = _nearest(gate.metric, names)
    guess = f"; did you mean {close!r}?" if close else ""
    return ConfigError(
        f"gate {str(gate)!r}: {summary.name} has no metric {gate.metric!r}{guess}",
        f"Its metrics: {', '.join(sorted(names))}.",
    )


def _nearest(name: str, names: Sequence[str]) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, names, n=1)), "")


def _token(text: str, at: int, pattern: re.Pattern[str], expected: str) -> tuple[str, int]:
    """The token at ``at``, after blanks, and where it ends."""
    while at < len(text) and text[at].isspace():
        at += 1
    match = pattern.match(text, at)
    if not match:
        raise _expected(text, at, expected)
    return match[0], match.end()


def _expected(text: str, at: int, expected: str) -> ConfigError:
    at += len(text[at:]) - len(text[at:].lstrip())
    rest = text[at:].split(maxsplit=1)
    found = repr(rest[0][:20]) if rest else "the end"
    return ConfigError(f"gate {text!r}: expected {expected} at position {at + 1}, found {found}", _HINT)
