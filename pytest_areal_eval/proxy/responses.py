"""``/v1/responses``: OpenAI's newer API; a conversation may go on where an answer of the same episode ended."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_areal_eval.proxy.ask import (
    Answer,
    Ask,
    Body,
    RefusedError,
    content_of,
    function_tool,
    read_form,
    read_list,
    read_sampling,
    read_tools,
    text_of,
)
from pytest_areal_eval.proxy.chat import Event

_IGNORED_ITEMS = frozenset({"reasoning"})
"""Items of the input that the chat template has no place for: a model does not read its own old reasoning."""


def read(body: Body) -> Ask:
    """A request.  Raises RefusedError."""
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": text_of(body["instructions"], "instructions")})
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise RefusedError("input must be a text or a list of at least one item", param="input")
    for n, item in enumerate(items):
        _add(messages, item, f"input[{n}]")
    tools = [_tool(tool) for tool in read_list(body, "tools")]
    return Ask(
        messages=messages,
        **read_tools(body, tools),
        **read_form((body.get("text") or {}).get("format"), "text.format"),
        sampling=read_sampling(body, able=("previous_response_id",)),
        previous=str(body["previous_response_id"]) if body.get("previous_response_id") else None,
        instructions=1 if body.get("instructions") else 0,
    )


def write(answer: Answer, body: Body) -> dict[str, Any]:
    """The answer."""
    cut = answer.stop_reason == "length"
    return _envelope(answer, body) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(answer),
        "usage": {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.input_tokens + answer.output_tokens,
        },
    }


def stream(answer: Answer, body: Body) -> Iterator[Event]:
    """The same as a stream."""
    for number, (kind, data) in enumerate(_events(answer, body)):
        yield kind, {"type": kind, "sequence_number": number, **data}


def _events(answer: Answer, body: Body) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = _envelope(answer, body) | {"status": "in_progress", "output": []}
    whole = write(answer, body)
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index}
        empty = {name: value for name, value in {"content": [], "arguments": ""}.items() if name in item}
        yield "response.output_item.added", at | {"item": item | empty | {"status": "in_progress"}}
        yield from _item_events(item, at | {"item_id": item["id"]})
        yield "response.output_item.done", at | {"item": item}
    yield f"response.{whole['status']}", {"response": whole}


def _item_events(item: Mapping[str, Any], at: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if item["type"] == "function_call":
        yield "response.function_call_arguments.delta", at | {"delta": item["arguments"]}
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield "response.function_call_arguments.done", at | done
    if item["type"] == "message":
        (part,) = item["content"]
        at = at | {"content_index": 0}
        yield "response.content_part.added", at | {"part": part | {"text": ""}}
        yield "response.output_text.delta", at | {"delta": part["text"], "logprobs": []}
        yield "response.output_text.done", at | {"text": part["text"], "logprobs": []}
        yield "response.content_part.done", at | {"part": part}


def _add(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    """Add an item of the input to the conversation; calls belong to the assistant's message before them."""
    if not isinstance(item, Mapping):
        raise RefusedError(f"{where} is no object", param="input")
    kind = item.get("type", "message")
    if kind == "message":
        role = "system" if item.get("role") == "developer" else item.get("role", "user")
        messages.append({"role": role, "content": content_of(item.get("content"), where)})
    elif kind == "function_call":
        call = {"name": item.get("name"), "arguments": item.get("arguments")}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(
            {"id": item.get("call_id"), "type": "function", "function": call}
        )
    elif kind == "function_call_output":
        said = {"tool_call_id": item.get("call_id"), "content": text_of(item.get("output"), where)}
        messages.append({"role": "tool"} | said)
    elif kind not in _IGNORED_ITEMS:
        raise RefusedError(f"{where}: items of type {kind!r} are not known here", param="input")


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise RefusedError(f"a tool of type {kind!r}: only functions are known here", param="tools")
    return function_tool(tool)


def _output(answer: Answer) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        part = {"type": "reasoning_text", "text": answer.reasoning}
        output.append({"id": _id("rs"), "type": "reasoning", "summary": [], "content": [part], "status": "completed"})
    if answer.content or not answer.tool_calls:
        text = {"type": "output_text", "text": answer.content, "annotations": [], "logprobs": []}
        said = {"role": "assistant", "status": "completed", "content": [text]}
        output.append({"id": _id("msg"), "type": "message", **said})
    for call in answer.tool_calls:
        called = {"call_id": call.id, "name": call.name, "arguments": call.arguments, "status": "completed"}
        output.append({"id": _id("fc"), "type": "function_call", **called})
    return output


def _envelope(answer: Answer, body: Body) -> dict[str, Any]:
    return {
        "id": answer.id,
        "object": "response",
        "created_at": answer.created,
        "model": body.get("model") or "default",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": True,
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
