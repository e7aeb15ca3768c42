"""What the four APIs come to: a conversation in, an answer out; and how a request's fields are read.

Invariant: what would change the answer and cannot be done is refused with the field's name; what changes nothing
(``user``, ``store``, ``metadata``) is ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_areal_eval.api import StopReason
from pytest_areal_eval.proxy.parsing import ToolCall

Body = Mapping[str, Any]
MOST_ANSWERS = 128
"""To one request, as OpenAI's."""


class RefusedError(Exception):
    """A request that gets an error instead of an answer.

    Args:
        message: what is wrong and what to do.
        status: HTTP status.
        param: the field, if it is one.
        code: for programs, such as ``context_length_exceeded``.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


@dataclass(frozen=True)
class Ask:
    """One request to the model.

    Attributes:
        messages: the conversation in the chat API's form; None for a plain completion.
        prompt: what to continue, text or token ids, where there is no conversation.
        tools: function schemas in the chat API's form.
        sampling: the settings that the agent chose, by the names of
            :class:`~pytest_areal_eval.api.GenerationHyperparameters`; the evaluation's hold for the others.
        template_kwargs: arguments of the chat template on top of the evaluation's.
        n: how many answers are wanted; each is a request of its own.
        logprobs: whether the sampled tokens' log-probabilities are.
        form: what the answer is held to, as chat's ``response_format``; None for nothing.
        form_field: how the API calls it.
        forced: names of the functions, one of which has to be called; none where the model may choose.
        previous: id of the answer whose conversation goes on.
        instructions: how many of the first messages hold for this request alone.
    """

    messages: list[dict[str, Any]] | None
    prompt: str | list[int] | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    logprobs: bool = False
    form: Mapping[str, Any] | None = None
    form_field: str = "response_format"
    forced: tuple[str, ...] = ()
    previous: str | None = None
    instructions: int = 0


@dataclass(frozen=True)
class Answer:
    """What the model said.

    Attributes:
        id: by which an agent may give this call its reward.
        content: without reasoning and tool calls.
        stop_reason: ``tool_calls`` where it made any.
        created: Unix time in whole seconds.
        logprobs: each token's text and log-probability, where they were asked for.
        others: the further answers to the same request, which have the same id.
    """

    id: str
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    stop_reason: StopReason = "stop"
    stop_string: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    logprobs: tuple[tuple[str, float], ...] | None = None
    others: tuple[Answer, ...] = ()

    @property
    def choices(self) -> tuple[Answer, ...]:
        """All answers to the request."""
        return (self, *self.others)


_SAMPLING: Mapping[str, tuple[str, type | tuple[type, ...], float]] = {
    "temperature": ("temperature", (int, float), 0),
    "top_p": ("top_p", (int, float), 0),
    "frequency_penalty": ("frequency_penalty", (int, float), -2),
    "seed": ("seed", int, -(2**63)),
    "top_k": ("top_k", int, -1),
    "max_tokens": ("max_new_tokens", int, 1),
    "max_completion_tokens": ("max_new_tokens", int, 1),
    "max_output_tokens": ("max_new_tokens", int, 1),
    "min_tokens": ("min_new_tokens", int, 0),
}
"""From a field to the setting, its types and the lowest value."""

_UNABLE: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "previous_response_id": ("",),
    "background": (False,),
    "conversation": (),
}
"""Fields that would change the answer, and the values of each at which they do not."""


def read_sampling(body: Body, able: Collection[str] = ()) -> dict[str, Any]:
    """The sampling settings that a request brings.

    Args:
        body: the request's.
        able: fields that this API can honour and others cannot.

    Raises:
        RefusedError: a value is of the wrong type or out of range, or asks for what cannot be done.
    """
    for name, harmless in _UNABLE.items():
        if name not in able and body.get(name) is not None and body[name] not in harmless:
            raise RefusedError(f"{name}={body[name]!r} cannot be honoured here; leave it out", param=name)
    sampling: dict[str, Any] = {}
    for name, (setting, kinds, low) in _SAMPLING.items():
        value: Any = body.get(name)
        if value is None:
            continue
        number = isinstance(value, kinds) and not isinstance(value, bool)
        if not number or not low <= value < float("inf"):
            raise RefusedError(f"{name}={value!r} is not a number of at least {low:g}", param=name)
        sampling[setting] = value
    if sampling.get("top_k", 1) <= 0:  # 0 and -1 mean "off"
        del sampling["top_k"]
    stop = body.get("stop") or body.get("stop_sequences")
    if stop is not None:
        sampling["stop"] = stop = [stop] if isinstance(stop, str) else stop
        if not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop):
            raise RefusedError(f"stop={stop!r} is neither a text nor a list of texts", param="stop")
    if "temperature" in sampling:
        sampling["greedy"] = sampling["temperature"] == 0
    return sampling


def read_count(body: Body) -> int:
    """``n``: how many answers are wanted.  Raises RefusedError."""
    n = body.get("n")
    if n is None:
        return 1
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_ANSWERS:
        raise RefusedError(f"n={n!r} is not a whole number from 1 to {MOST_ANSWERS}", param="n")
    return n


def read_list(body: Body, name: str) -> list[Any]:
    """A field that is a list, or left out."""
    found = body.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise RefusedError(f"{name}={found!r:.80} is no list", param=name)
    return found


def read_tools(body: Body, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The tools that remain after ``tool_choice``, and which of them it forces, as fields of :class:`Ask`.

    Raises:
        RefusedError: it is of no known form, or forces a call of what is not there.
    """
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind == "none":
        return {"tools": []}
    if kind in (None, "auto"):
        return {"tools": tools}
    names = [tool["function"]["name"] for tool in tools]
    if kind in ("function", "tool") and isinstance(choice, Mapping):  # OpenAI's two APIs, and Anthropic's
        wanted = choice.get("name") or (choice.get("function") or {}).get("name")
        names = [name for name in names if name == wanted]
    elif kind not in ("required", "any"):
        raise RefusedError(f"tool_choice={choice!r} is not known here; use 'auto'", param="tool_choice")
    if not names:
        raise RefusedError(f"tool_choice={choice!r}: there is no such tool among the tools", param="tool_choice")
    return {"tools": tools, "forced": tuple(names)}


def read_form(form: Any, param: str) -> dict[str, Any]:
    """What an answer is held to, as fields of :class:`Ask`; none for plain text.

    Args:
        form: of the chat API, or of the others, which have the schema beside the type.
        param: the field's name.

    Raises:
        RefusedError: it is of no known form.
    """
    kind = form.get("type") if isinstance(form, Mapping) else form
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        return {"form": {"type": kind}, "form_field": param}
    said = form.get("json_schema", form) if kind == "json_schema" else None
    if not isinstance(said, Mapping) or not isinstance(said.get("schema"), Mapping):
        raise RefusedError(
            f"{param}={form!r:.200} is neither json_object nor a json_schema with its schema", param=param
        )
    named = {name: said[name] for name in ("description", "strict") if said.get(name) is not None}
    schema = {"name": said.get("name") or "answer", "schema": said["schema"], **named}
    return {"form": {"type": kind, "json_schema": schema}, "form_field": param}


def function_tool(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A function's schema in the chat API's form."""
    names = ("name", "description", "parameters", "strict")
    function = {name: schema[name] for name in names if schema.get(name) is not None}
    if not isinstance(function.get("name"), str):
        raise RefusedError(f"a tool without a name: {json.dumps(schema, default=str)[:200]}", param="tools")
    if not isinstance(function.get("parameters", {}), Mapping):
        raise RefusedError(f"tool {function['name']!r}: its parameters are no JSON schema", param="tools")
    return {"type": "function", "function": function}


def content_of(content: Any, where: str) -> str | list[dict[str, Any]]:
    """A message's text, or its parts in the chat API's form where one of them is a picture.

    Raises:
        RefusedError: a part is neither, or a picture is not in the request itself.
    """
    if not isinstance(content, list) or not any(_picture(part, where) for part in content):
        return text_of(content, where)
    return [_picture(part, where) or {"type": "text", "text": text_of([part], where)} for part in content]


def _picture(part: Any, where: str) -> dict[str, Any] | None:
    """A picture as OpenAI's chat, its Responses or Anthropic's Messages send it; None for any other part."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("image_url", "input_image"):
        url: Any = part.get("image_url")
        url = url.get("url") if isinstance(url, Mapping) else url
    elif kind == "image":
        source = part.get("source") or {}
        url = f"data:{source.get('media_type')};base64,{source.get('data')}" if source.get("data") else None
    else:
        return None
    if not isinstance(url, str) or not url.startswith("data:"):
        raise RefusedError(f"{where}: an image must be in the request itself, as base64 (a data: URI)", param=where)
    return {"type": "image_url", "image_url": {"url": url}}


def text_of(content: Any, where: str) -> str:
    """A message's text: a string, or the text parts of a list, joined as their author wrote them.

    Raises:
        RefusedError: a part is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RefusedError(f"{where}: the content is neither text nor a list of parts", param=where)
    texts = []
    for part in content:
        if isinstance(part, str):
            part = {"text": part}
        if not isinstance(part, Mapping) or not isinstance(part.get("text", part.get("refusal")), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise RefusedError(f"{where}: a part of type {kind!r} is no text", param=where)
        texts.append(part.get("text", part.get("refusal")))
    return "".join(texts)
