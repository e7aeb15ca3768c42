"""``/v1/chat/completions`` and ``/v1/completions``: OpenAI's older two APIs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_areal_eval.proxy.ask import (
    Answer,
    Ask,
    Body,
    RefusedError,
    content_of,
    function_tool,
    read_count,
    read_form,
    read_list,
    read_sampling,
    read_tools,
)
from pytest_areal_eval.proxy.parsing import ToolCall

Event = tuple[str, dict[str, Any] | str]
"""A server-sent event: its name (empty: none) and its data."""

_ROLES = {"developer": "system", "function": "tool"}


def read_chat(body: Body) -> Ask:
    """A chat request.  Raises RefusedError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError("messages must be a list of at least one message", param="messages")
    tools = [function_tool(_function(tool)) for tool in read_list(body, "tools")]
    options = body.get("chat_template_kwargs") or {}
    if not isinstance(options, Mapping):
        raise RefusedError("chat_template_kwargs must be an object", param="chat_template_kwargs")
    return Ask(
        messages=[_message(message, f"messages[{n}]") for n, message in enumerate(messages)],
        **read_tools(body, tools),
        sampling=read_sampling(body, able=("n", "logprobs", "response_format")),
        template_kwargs=options,
        n=read_count(body),
        logprobs=bool(body.get("logprobs")),
        **read_form(body.get("response_format"), "response_format"),
    )


def write_chat(answer: Answer, body: Body) -> dict[str, Any]:
    """The answer to a chat request."""
    choices = [
        {"index": n, "message": _said(one), "logprobs": _logprobs(one), "finish_reason": _finish(one)}
        for n, one in enumerate(answer.choices)
    ]
    return _envelope(answer, body, "chat.completion") | {"choices": choices, "usage": usage(answer)}


def stream_chat(answer: Answer, body: Body) -> Iterator[Event]:
    """The same as a stream: the whole text is one piece, since engines answer at once."""
    envelope = _envelope(answer, body, "chat.completion.chunk")
    for index, one in enumerate(answer.choices):
        for n, delta in enumerate(_deltas(one)):
            chosen = {"index": index, "delta": delta, "finish_reason": None}
            yield "", envelope | {"choices": [chosen | ({"logprobs": _logprobs(one)} if n == 0 else {})]}
        yield "", envelope | {"choices": [{"index": index, "delta": {}, "finish_reason": _finish(one)}]}
    options = body.get("stream_options")
    if isinstance(options, Mapping) and options.get("include_usage"):
        yield "", envelope | {"choices": [], "usage": usage(answer)}
    yield "", "[DONE]"


def read_completion(body: Body) -> Ask:
    """A request to continue a text or token ids.  Raises RefusedError."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not prompt or not (isinstance(prompt, str) or ids):
        raise RefusedError("prompt must be one text or one list of token ids, not empty", param="prompt")
    return Ask(messages=None, prompt=prompt, sampling=read_sampling(body, able=("n",)), n=read_count(body))


def write_completion(answer: Answer, body: Body) -> dict[str, Any]:
    """The answer to it."""
    choices = [
        {"index": n, "text": one.content, "logprobs": None, "finish_reason": _finish(one)}
        for n, one in enumerate(answer.choices)
    ]
    return _envelope(answer, body, "text_completion") | {"choices": choices, "usage": usage(answer)}


def stream_completion(answer: Answer, body: Body) -> Iterator[Event]:
    """The same as a stream."""
    yield "", write_completion(answer, body)
    yield "", "[DONE]"


def usage(answer: Answer) -> dict[str, int]:
    """Token counts, as OpenAI's older APIs name them; the prompt's count once, however many answers there are."""
    prompt, completion = answer.input_tokens, sum(one.output_tokens for one in answer.choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _said(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or None, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [_call(call) for call in answer.tool_calls]
    elif not answer.content:
        message["content"] = ""
    return message


def _deltas(answer: Answer) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if answer.reasoning:
        deltas.append({"reasoning_content": answer.reasoning})
    if answer.content:
        deltas.append({"content": answer.content})
    return deltas + [{"tool_calls": [{"index": n} | _call(call)]} for n, call in enumerate(answer.tool_calls)]


def _logprobs(answer: Answer) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None
    content = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in answer.logprobs
    ]
    return {"content": content, "refusal": None}


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RefusedError(f"{where} is no message with a role", param="messages")
    role = _ROLES.get(message["role"], message["role"])
    read: dict[str, Any] = {"role": role, "content": content_of(message.get("content"), where)}
    read |= {name: message[name] for name in ("tool_call_id", "name", "reasoning_content") if message.get(name)}
    if message.get("tool_calls"):
        read["tool_calls"] = [dict(call) for call in message["tool_calls"]]
    return read


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        raise RefusedError("only tools of the form {'type': 'function', 'function': {...}} are known", param="tools")
    return function


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(answer: Answer) -> str:
    return "stop" if answer.stop_reason == "abort" else answer.stop_reason


def _envelope(answer: Answer, body: Body, kind: str) -> dict[str, Any]:
    return {"id": answer.id, "object": kind, "created": answer.created, "model": body.get("model") or "default"}
