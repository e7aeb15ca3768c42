"""Reading a request's body: each field by name, type and range, and nothing that is not understood.

Invariant: a setting that this server would not honour is refused with 400 and its name, never ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pytest_areal_eval.engines.hf_server.generation import Sampling

KINDS = {
    401: "AuthenticationError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class RequestRefusedError(Exception):
    """Becomes an error body in OpenAI's shape."""

    def __init__(self, message: str, *, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.status = message, param, status

    @property
    def body(self) -> dict[str, Any]:
        """``{"error": {message, type, param, code}}``."""
        kind = KINDS.get(self.status, "BadRequestError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


class Fields:
    """A JSON object of which null counts as absent.

    Args:
        body: what was sent.
        known: the fields that are understood; any other one is refused.
    """

    def __init__(self, body: Any, known: Collection[str]) -> None:
        if not isinstance(body, Mapping):
            raise RequestRefusedError(f"the body must be a JSON object, not {type(body).__name__}")
        self._values = {name: value for name, value in body.items() if value is not None}
        for name in self._values:
            if name not in known:
                raise RequestRefusedError(
                    f"unknown field `{name}`, expected one of {', '.join(sorted(known))}", param=name
                )

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def raw(self, name: str, default: Any = None) -> Any:
        """The value as it was sent."""
        return self._values.get(name, default)

    def only(self, name: str, *accepted: Any) -> None:
        """Refuse any value but these: the field is known, but nothing else is served."""
        if name in self._values and self._values[name] not in accepted:
            self.refuse(name, f"only {' or '.join(map(repr, accepted))} is served")

    def refuse(self, name: str, why: str) -> None:
        """Raise for a field's value."""
        raise RequestRefusedError(f"`{name}` is {self._values.get(name)!r}: {why}", param=name)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number in [low, high]."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.refuse(name, f"expected a number from {low:g} to {high:g}")
        return float(value)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(name, f"expected a whole number from {low} to {high}")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            self.refuse(name, "expected true or false")
        return bool(value)

    def strings(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings, empty ones left out."""
        value = self._values.get(name, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            self.refuse(name, "expected a string or a list of strings")
        return tuple(v for v in values if v)

    def ids(self, name: str, vocab_size: int) -> list[int]:
        """A list of token ids below ``vocab_size``."""
        value = self._values.get(name, [])
        if not isinstance(value, list) or not all(type(v) is int and 0 <= v < vocab_size for v in value):
            raise RequestRefusedError(f"`{name}` must be a list of token ids from 0 to {vocab_size - 1}", param=name)
        return value


SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "frequency_penalty",
        "presence_penalty",
        "min_p",
        "repetition_penalty",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "skip_special_tokens",
    }
)
"""Sampling fields that have the same name in both APIs."""

MAX_SEED = 2**64 - 1


def read_sampling(
    fields: Fields, *, max_new_tokens: int, min_name: str, seed_name: str, logprobs: bool, eos_ids: frozenset[int]
) -> Sampling:
    """The sampling settings of a body.

    ``ignore_eos`` takes the model's end tokens out of the stop tokens even where ``stop_token_ids`` names them, as
    AReaL adds them there to every request.

    Args:
        fields: the body, or SGLang's ``sampling_params``.
        max_new_tokens: the limit, read already.
        min_name: what the API calls the least number of tokens.
        seed_name: what it calls the seed.
        logprobs: whether log-probabilities are wanted.
        eos_ids: the model's own end tokens.
    """
    stop_ids = frozenset(fields.ids("stop_token_ids", 2**31)) | eos_ids
    top_k = fields.integer("top_k", 0, -1, 2**31)
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    if top_p == 0.0:
        fields.refuse("top_p", "it must be above 0")
    fields.only("min_p", 0.0)
    fields.only("repetition_penalty", 1.0)
    return Sampling(
        max_new_tokens=max_new_tokens,
        min_new_tokens=fields.integer(min_name, 0, 0, max_new_tokens),
        temperature=fields.number("temperature", 1.0, 0.0, 100.0),
        top_p=top_p,
        top_k=max(top_k, 0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
        stop=fields.strings("stop"),
        stop_ids=stop_ids - eos_ids if fields.flag("ignore_eos") else stop_ids,
        seed=fields.integer(seed_name, 0, -MAX_SEED, MAX_SEED) if seed_name in fields else None,
        logprobs=logprobs,
        skip_special_tokens=fields.flag("skip_special_tokens", True),
    )
