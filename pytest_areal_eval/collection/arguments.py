"""What each argument of ``@evaluation`` may be; a wrong one is named with its value and with what it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_areal_eval.errors import ConfigError


def _wrong(name: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"@evaluation: {name}={value!r} is not {wanted}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str) else value
    if not isinstance(values, Sequence) or not all(isinstance(v, str) and v for v in values):
        raise _wrong(name, value, "a string or a list of strings")
    return tuple(values)


def _gates(name: str, value: Any) -> tuple[str, ...]:
    from pytest_areal_eval.stats.gates import parse_gate

    texts = _texts(name, value)
    for text in texts:
        parse_gate(text)
    return texts


def _whole(low: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise _wrong(name, value, f"a whole number of at least {low}")
        return value

    return check


def _number(wanted: str, legal: Callable[[float], bool]) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        if not _is_number(value) or not legal(value):
            raise _wrong(name, value, wanted)
        return float(value)

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return value


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a dict")
    return value


def _column(name: str, value: Any) -> Any:
    if not (callable(value) or (isinstance(value, str) and value)):
        raise _wrong(name, value, "a column's name or a function of the record")
    return value


def _reward(name: str, value: Any) -> Any:
    if not (callable(value) or (isinstance(value, str) and "." in value)):
        raise _wrong(name, value, "a function or its dotted name")
    return value


def _range(name: str, value: Any) -> tuple[float, float]:
    ends = value if isinstance(value, Sequence) and len(value) == 2 else ()
    if not (ends and all(map(_is_number, ends)) and ends[0] < ends[1]):
        raise _wrong(name, value, "(lowest, highest)")
    return float(ends[0]), float(ends[1])


def _ids(name: str, value: Any) -> tuple[int, ...]:
    listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not listed or not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value):
        raise _wrong(name, value, "a list of token ids")
    return tuple(value)


_SECONDS = _number("a number of seconds above 0", lambda v: 0 < v < float("inf"))
CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "prompt": _column,
    "answer": _column,
    "workflow_kwargs": _mapping,
    "template_kwargs": _mapping,
    "reward_fn": _reward,
    "reward_range": _range,
    "gates": _gates,
    "pass_mark": _number("a finite number", lambda v: abs(v) < float("inf")),
    "strict": _flag,
    "greedy": _flag,
    "ignore_eos": _flag,
    "enable_thinking": _flag,
    "check_gold": _flag,
    "n_samples": _whole(1),
    "top_k": _whole(1),
    "max_new_tokens": _whole(1),
    "min_new_tokens": _whole(0),
    "temperature": _number("a number of at least 0", lambda v: 0 <= v < float("inf")),
    "top_p": _number("above 0 and at most 1", lambda v: 0 < v <= 1),
    "frequency_penalty": _number("between -2 and 2", lambda v: -2 <= v <= 2),
    "stop": _texts,
    "stop_token_ids": _ids,
    "episode_timeout": _SECONDS,
    "reward_timeout": _SECONDS,
}
"""By name: returns the value as the specification keeps it, or raises ConfigError."""
