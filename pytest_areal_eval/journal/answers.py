"""What the engine answered, as a line of its own: written before the workflow sees it, and so before it is graded.

Invariant: an answer is given again only to the same request (the prompt's ids or messages, and its sampling) at the
same place of the same episode.  Whatever goes wrong in grading, no generation is lost.
"""

from __future__ import annotations

import hashlib
import json
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.journal.record import SCHEMA, EpisodeKey, encode_line

GENERATION = "generation"
"""The ``kind`` of an answer's line."""

_KEPT = ("stop_reason", "stop_string", "text", "reasoning", "tool_calls", "latency", "ttft", "replica", "attempts")
_SHAPING = ("response_format", "tool_choice")
"""Keys of a request's metadata that shape its answer."""


@dataclass(frozen=True)
class Answer:
    """One answer of the engine.

    Attributes:
        evaluation: the evaluation's name.
        item_id: the item's id.
        index: which of its episodes asked.
        request: which of the episode's requests this was, from 1.
        key: the request's, by :func:`request_key`.
        response: what came back, as JSON values.
    """

    evaluation: str
    item_id: str
    index: int
    request: int
    key: str
    response: Mapping[str, Any]


def request_key(request: ModelRequest) -> str:
    """16 hex digits over all that shapes the answer: prompt, template arguments, images, sampling and its form."""
    said = [request.messages, request.template_kwargs, request.image_data, repr(request.gconfig)]
    said += [request.metadata[name] for name in _SHAPING if request.metadata.get(name)]
    digest = hashlib.sha256(array("q", request.input_ids).tobytes())
    digest.update(json.dumps(said, sort_keys=True, default=repr).encode())
    return digest.hexdigest()[:16]


def response_to_dict(response: ModelResponse) -> dict[str, Any]:
    """What a line keeps of a response; its prompt's ids are in the request."""
    kept = {name: getattr(response, name, None) for name in _KEPT}
    finite = {name: value for name, value in kept.items() if value not in (None, [], float("inf"))}
    return finite | {
        "input_len": response.input_len,
        "output_len": response.output_len,
        "gives_ids": bool(response.input_tokens),
        "output_tokens": response.output_tokens,
        "output_logprobs": response.output_logprobs,
    }


def response_of(answer: Answer, request: ModelRequest) -> ModelResponse:
    """The response again, as the engine gave it to this request."""
    said = dict(answer.response)
    input_len, output_len = said.pop("input_len"), said.pop("output_len")
    ids = list(request.input_ids) if said.pop("gives_ids") else []
    return ModelResponse(
        input_tokens=ids, input_count=input_len, output_count=output_len, tokenizer=request.tokenizer, **said
    )


def encode_answer(answer: Answer) -> bytes:
    """Its line; begins with :func:`answer_head`.

    Raises:
        JournalError: it is no JSON.
    """
    record = {
        "v": SCHEMA,
        "kind": GENERATION,
        "evaluation": answer.evaluation,
        "item_id": answer.item_id,
        "index": answer.index,
        "request": answer.request,
        "key": answer.key,
        "at": round(time.time(), 3),
        "response": answer.response,
    }
    return encode_line(record)


def answer_of(record: Mapping[str, Any]) -> Answer:
    """The answer in a decoded line.

    Raises:
        KeyError, TypeError: it is none.
    """
    names = ("evaluation", "item_id", "index", "request", "key")
    return Answer(**{name: record[name] for name in names}, response=dict(record["response"]))


def answer_key(record: Mapping[str, Any]) -> EpisodeKey:
    """Whose answer a decoded line holds."""
    return record["evaluation"], record["item_id"], record["index"]
