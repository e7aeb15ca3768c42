"""What servers answer, read: SGLang's ``/generate``, ``/v1/completions`` with ids, and chat.

Invariant: a body of another form than its name says raises one of :data:`~pytest_areal_eval.engines.http.MALFORMED`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pytest_areal_eval.api import ModelResponse, StopReason
from pytest_areal_eval.errors import RequestError

LARGEST_ID = 2**31 - 1
"""What tokenizers take; of a larger one they say that it overflows, in a traceback."""
_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "tool_calls": "tool_calls",
}


def parse_generate(body: Any) -> ModelResponse:
    """Ids out."""
    meta = body["meta_info"]
    reason = meta["finish_reason"]
    matched = reason.get("matched")
    return ModelResponse(
        output_tokens=list(body["output_ids"]),
        output_logprobs=[float(logprob) for logprob, *_ in meta.get("output_token_logprobs") or ()],
        stop_reason=stop_reason(reason["type"]),
        stop_string=matched if isinstance(matched, str) else None,
        text=_text(body["text"]),
        input_count=int(meta["prompt_tokens"]),
        output_count=int(meta["completion_tokens"]),
        served=_served(meta.get("weight_version")),
    )


def parse_completion(body: Any) -> ModelResponse:
    """Ids out."""
    choice, usage = body["choices"][0], body["usage"]
    matched = choice.get("stop_reason")
    return ModelResponse(
        output_tokens=list(choice["token_ids"]),
        output_logprobs=[float(logprob) for logprob in (choice.get("logprobs") or {}).get("token_logprobs") or ()],
        stop_reason=stop_reason(choice["finish_reason"]),
        stop_string=matched if isinstance(matched, str) else None,
        text=_text(choice["text"]),
        input_count=int(usage["prompt_tokens"]),
        output_count=int(usage["completion_tokens"]),
        served=_served(body.get("model")),
    )


def parse_chat(body: Any) -> ModelResponse:
    """Text out, and ids where the server tells them."""
    choice, usage = body["choices"][0], body.get("usage") or {}
    message = choice["message"]
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    logprobs = (choice.get("logprobs") or {}).get("content") or ()
    metadata = body.get("metadata")
    return ModelResponse(
        input_tokens=list(body.get("prompt_token_ids") or choice.get("prompt_token_ids") or ()),
        output_tokens=list(choice.get("token_ids") or choice.get("response_token_ids") or ()),
        output_logprobs=[float(entry["logprob"]) for entry in logprobs],
        stop_reason=stop_reason(choice["finish_reason"]),
        stop_string=matched if isinstance(matched, str) else None,
        text=_text(message.get("content")),
        reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
        tool_calls=[{"id": call["id"], **_called(call["function"])} for call in message.get("tool_calls") or ()],
        input_count=int(usage.get("prompt_tokens", 0)),
        output_count=int(usage.get("completion_tokens", 0)),
        served=_served(body.get("model"), metadata.get("weight_version") if isinstance(metadata, Mapping) else None),
    )


def check_fields(response: ModelResponse) -> None:
    """Refuse what is not what its name says.

    Raises:
        TypeError, ValueError: ids that are no ids, a log-probability or a count that is none.
    """
    ids = response.input_tokens + response.output_tokens
    if not set(map(type, ids)) <= {int}:
        raise TypeError("token ids are whole numbers")
    if min(response.input_count, response.output_count, min(ids, default=0)) < 0:
        raise ValueError("token ids and counts are not negative")
    if max(ids, default=0) > LARGEST_ID:
        raise ValueError("no vocabulary has so many tokens")
    if not all(map(math.isfinite, response.output_logprobs)):
        raise ValueError("log-probabilities are finite")


def stop_reason(kind: str) -> StopReason:
    """A server's finish reason.

    Raises:
        RequestError: a content filter ended the answer, so that there is none.
        ValueError: unknown.
    """
    if kind == "content_filter":
        raise RequestError("the endpoint's content filter ended the answer")
    if kind not in _STOP_REASONS:
        raise ValueError(f"unknown finish reason {kind!r}")
    return _STOP_REASONS[kind]


def _text(value: Any) -> str:
    """Null is how servers say nothing; anything else that is no text must not be graded as one."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"no text: {type(value).__name__}")
    return value or ""


def _served(*names: Any) -> str:
    """The names that a server gave, weights behind the model."""
    return ", weights ".join(str(name) for name in names if name not in (None, ""))


def _called(function: Mapping[str, Any]) -> dict[str, str]:
    return {"name": function["name"], "arguments": _text(function["arguments"])}
