"""Gates as they are typed: ``METRIC OP NUMBER``, or ``METRIC OP baseline - NUMBER``.

Invariant: any text is a gate or one clear :class:`ConfigError`, and a gate's text parses back to an equal gate.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_areal_eval.errors import ConfigError

_COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": operator.eq}

RATES = ("error_rate", "fault_rate", "truncation_rate", "empty_rate")
METRICS = ("reward", "reward_scored", "reward_completed", *RATES, "missed_rate", "mean_output_tokens")
"""What every summary has, beside ``pass@K`` and ``maj@K``."""

_METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_@./-]*")
_OPERATOR = re.compile(r">=|<=|==|>|<")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?%?")
_BASELINE = re.compile(r"baseline(?![A-Za-z0-9_])")
_SIGN = re.compile(r"[+-]")
_UNSIGNED = re.compile(_NUMBER.pattern.removeprefix("[+-]?"))
_DRAWS = re.compile(r"(pass|maj)@([0-9]{1,6})")
_HINT = 'Write METRIC OP NUMBER, for example "reward >= 0.72", "error_rate <= 1%" or "reward >= baseline - 0.01".'


@dataclass(frozen=True)
class Gate:
    """A condition on an evaluation's aggregate.

    Attributes:
        metric: ``reward``, ``pass@4``, ``error_rate``, ... or a metric of the workflow or of a dict reward.
        op: ``>=``, ``>``, ``<=``, ``<`` or ``==``.
        threshold: a finite number; percentages are divided by 100.
        text: the condition as it was typed, with single spaces; what ``str`` gives.
        from_baseline: the threshold is counted from the baseline run's value of the metric.
    """

    metric: str
    op: str
    threshold: float
    text: str = field(compare=False)
    from_baseline: bool = False

    def __str__(self) -> str:
        return self.text

    @property
    def k(self) -> int | None:
        """The K of ``pass@K`` and ``maj@K``, which the summary has to be asked for."""
        match = _DRAWS.fullmatch(self.metric)
        return int(match[2]) if match else None

    def doubt(self, n_samples: int, *, with_baseline: bool = True) -> str:
        """What can be said against the gate before the run; empty if nothing can."""
        if self.from_baseline and not with_baseline:
            return f"gate {str(self)!r} will fail: give the run to compare with: --baseline=RUN"
        if self.k is not None and self.k > n_samples:
            return f"gate {str(self)!r} will fail: n_samples is {n_samples}; run with --n-samples={self.k} or more"
        if self.k is None and self.metric not in METRICS and (close := nearest(self.metric, METRICS)):
            return f"gate {str(self)!r} will fail unless the reward gives a {self.metric!r}; did you mean {close!r}?"
        return ""

    def holds(self, value: float) -> bool:
        """Whether a value meets the condition."""
        return bool(_COMPARE[self.op](value, self.threshold))


def parse_gate(text: str) -> Gate:
    """Read ``METRIC OP NUMBER``, ``METRIC OP baseline``, or ``METRIC OP baseline - NUMBER`` (or ``+``).

    Raises:
        ConfigError: it is no such condition; the message has the position and what was expected there.
    """
    metric, at = _token(text, 0, _METRIC, "a metric's name")
    op, at = _token(text, at, _OPERATOR, "one of >=, >, <=, <, ==")
    typed, threshold, from_baseline, at = _threshold(text, at)
    if text[at:].strip():
        raise _expected(text, at, "the end, since a gate is one comparison with one number")
    if metric.startswith(("pass@", "maj@")):
        match = _DRAWS.fullmatch(metric)
        if not match or not int(match[2]):
            raise ConfigError(
                f"gate {text!r}: {metric!r} needs a whole number of draws from 1 on, such as pass@4", _HINT
            )
        metric = f"{match[1]}@{int(match[2])}"
    return Gate(metric, op, threshold, f"{metric} {op} {typed}", from_baseline)


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


def nearest(name: str, names: Sequence[str]) -> str:
    """The name that was probably meant; empty where none is close."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, names, n=1)), "")


def _threshold(text: str, at: int) -> tuple[str, float, bool, int]:
    """What was typed with single spaces, its value, whether that counts from the baseline, and where it ends."""
    if not _found(text, at, _BASELINE):
        number, at = _token(text, at, _NUMBER, "a number or a percentage")
        return number, _value(text, number), False, at
    _, at = _token(text, at, _BASELINE, "")
    if not text[at:].strip():
        return "baseline", 0.0, True, at
    sign, at = _token(text, at, _SIGN, "+ or - and a number, or the end")
    number, at = _token(text, at, _UNSIGNED, "a number or a percentage")
    return f"baseline {sign} {number}", _value(text, sign + number), True, at


def _value(text: str, number: str) -> float:
    value = float(number.rstrip("%")) / (100.0 if number.endswith("%") else 1.0)
    if not math.isfinite(value):
        raise ConfigError(f"gate {text!r}: the threshold {number} is not a finite number", _HINT)
    return value


def _found(text: str, at: int, pattern: re.Pattern[str]) -> bool:
    rest = text[at:].lstrip()
    return bool(pattern.match(rest))


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
