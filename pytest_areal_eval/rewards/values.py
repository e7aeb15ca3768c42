"""What a reward function returned, as a score: one finite number in range, or an error that names the item."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

from pytest_areal_eval.api import Score
from pytest_areal_eval.errors import GraderError

DEFAULT_RANGE = (0.0, 1.0)
"""Where an evaluation says nothing."""

_REWARD_KEYS = ("reward", "rewards", "score")
_TRAINING = frozenset(
    {"input_ids", "loss_mask", "logprobs", "versions", "attention_mask", "begin_of_trajectory", "seqlens"}
)
"""What AReaL's workflows return beside the rewards; of one token each they would look like metrics."""
_HINT = "Return a number, a one-element array, a Score, or a dict with the key 'reward'."


def as_score(value: Any, where: str, reward_range: tuple[float, float] | None = None) -> Score:
    """Read a reward.

    Args:
        value: a float, int, bool, numpy or torch scalar, an array, tensor or list of one element, a :class:`Score`, or
            a dict that holds one of these under ``reward``, ``rewards`` or ``score`` and further numbers as metrics.
            As AReaL's workflows return them: ``rewards`` of shape [n], of which the mean counts, and a dict of
            interactions with a ``reward`` each, of which the last one's counts.
        where: the item, as messages name it.
        reward_range: lowest and highest reward that is allowed, both included; None allows every finite number.

    Raises:
        GraderError: it is none of these, not finite, or out of range.
    """
    score = _read(value, where)
    if not math.isfinite(score.value):
        raise GraderError(f"{where}: the reward is {score.value}, not a finite number")
    if reward_range is not None and not reward_range[0] <= score.value <= reward_range[1]:
        raise GraderError(
            f"{where}: the reward is {score.value:g}, outside {reward_range[0]:g} to {reward_range[1]:g}",
            "Scale it, or give reward_range=(low, high).",
        )
    return score


def _read(value: Any, where: str) -> Score:
    if isinstance(value, Score):
        metrics = {key: _number(metric, where, f"metric {key!r}") for key, metric in value.metrics.items()}
        return replace(value, value=_number(value.value, where, "the reward"), metrics=metrics)
    if not isinstance(value, Mapping):
        number = _number(value, where, "the reward")  # which may tell what was compared
        return Score(number, {}, getattr(value, "extracted", None), getattr(value, "gold", None))
    if value and all(hasattr(inner, "reward") for inner in value.values()):
        return Score(_last_reward(value, where), {"interactions": float(len(value))})
    key = next((key for key in _REWARD_KEYS if key in value), None)
    if key is None:
        names = ", ".join(map(repr, value)) or "none"
        raise GraderError(f"{where}: the reward is a dict without the key 'reward' (keys: {names})", _HINT)
    metrics = {
        str(name): _number(metric, where, f"metric {name!r}")
        for name, metric in value.items()
        if name != key and name not in _TRAINING and _is_numeric(metric)
    }
    inner = value[key]
    if key == "rewards" and (several := _several(inner)):
        numbers = [_number(one, where, "a reward") for one in several]
        return Score(sum(numbers) / len(numbers), {**metrics, "n_rewards": float(len(numbers))})
    if isinstance(inner, Score):
        score = _read(inner, where)
        return replace(score, metrics={**score.metrics, **metrics})
    return Score(_number(inner, where, "the reward"), metrics, _text(value, "extracted"), _text(value, "gold"))


def _last_reward(interactions: Mapping[Any, Any], where: str) -> float:
    found = [inner.reward for inner in interactions.values() if inner.reward is not None]
    if not found:
        raise GraderError(f"{where}: none of the {len(interactions)} interactions has a reward", _HINT)
    return _number(found[-1], where, "the last interaction's reward")


def _several(value: Any) -> list[Any]:
    """The elements of a list, an array or a tensor of one dimension and more than one of them; else nothing."""
    shape = tuple(getattr(value, "shape", (len(value),) if isinstance(value, list | tuple) else ()))
    return list(value) if len(shape) == 1 and shape[0] > 1 else []


def _number(value: Any, where: str, what: str) -> float:
    """A scalar, or the only element of a list, an array or a tensor (told by their ``item`` method)."""
    single = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    if hasattr(single, "item") and math.prod(getattr(single, "shape", ())) == 1:
        single = single.item()
    if isinstance(single, Real):
        try:
            return float(single)
        except OverflowError:
            raise GraderError(f"{where}: {what} is too large for a float") from None
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    raise GraderError(f"{where}: {what} is {_describe(value)}{shape}, not one number", _HINT)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, Real) or (hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1)


def _text(value: Mapping[str, Any], key: str) -> str | None:
    return value[key] if isinstance(value.get(key), str) else None


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:80] + '…'}"
