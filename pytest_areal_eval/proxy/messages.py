"""``/v1/messages``: Anthropic's API."""

from __future__ import annotations

import json
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
from pytest_areal_eval.proxy.parsing import parsed_arguments

_STOP = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "abort": "end_turn"}
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}


def read(body: Body) -> Ask:
    """A request.  Raises RefusedError."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise RefusedError("messages must be a list of at least one message", param="messages")
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": text_of(body["system"], "system")})
    for n, message in enumerate(given):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RefusedError(f"messages[{n}] is no message with a role", param="messages")
        messages += _messages(message, f"messages[{n}]")
    thinks = {"enable_thinking": True} if (body.get("thinking") or {}).get("type") == "enabled" else {}
    tools = [_tool(tool) for tool in read_list(body, "tools")]
    return Ask(
        messages=messages,
        **read_tools(body, tools),
        **read_form((body.get("output_config") or {}).get("format"), "output_config.format"),
        sampling=read_sampling(body),
        template_kwargs=thinks,
    )


def write(answer: Answer, body: Body) -> dict[str, Any]:
    """The answer."""
    ended_by = answer.stop_string if answer.stop_reason == "stop" else None
    return {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": body.get("model") or "default",
        "content": _blocks(answer),
        "stop_reason": "stop_sequence" if ended_by else _STOP[answer.stop_reason],
        "stop_sequence": ended_by,
        "usage": {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens},
    }


def stream(answer: Answer, body: Body) -> Iterator[Event]:
    """The same as a stream."""
    for kind, data in _events(write(answer, body)):
        yield kind, {"type": kind, **data}


def error(refused: RefusedError) -> dict[str, Any]:
    """Anthropic's form of an error."""
    kind = _KINDS.get(refused.status, "api_error" if refused.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(refused)}}


def _events(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    nothing_yet: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    yield "message_start", {"message": whole | nothing_yet | {"usage": whole["usage"] | {"output_tokens": 0}}}
    for index, block in enumerate(whole["content"]):
        empty, delta = _split(block)
        yield "content_block_start", {"index": index, "content_block": empty}
        yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield "message_delta", {"delta": ended, "usage": whole["usage"]}
    yield "message_stop", {}


def _split(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A block as it begins, and what completes it."""
    if block["type"] == "tool_use":
        return block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    if block["type"] == "thinking":
        return block | {"thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
    return block | {"text": ""}, {"type": "text_delta", "text": block["text"]}


def _messages(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """One message of theirs is several of ours where it carries results of tools."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": message["role"], "content": content}]
    blocks = [block for block in content or () if isinstance(block, Mapping)]
    read = [
        {"role": "tool", "tool_call_id": b.get("tool_use_id"), "content": text_of(b.get("content"), where)}
        for b in blocks
        if b.get("type") == "tool_result"
    ]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    silent = ("tool_result", "tool_use", "thinking", "redacted_thinking")
    text = content_of([block for block in blocks if block.get("type") not in silent], where)
    if text or calls or not read:
        read.append({"role": message["role"], "content": text} | ({"tool_calls": calls} if calls else {}))
    return read


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {}, ensure_ascii=False)}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or "input_schema" not in tool:
        raise RefusedError("only tools with a name and an input_schema are known here", param="tools")
    return function_tool({**tool, "parameters": tool["input_schema"]})


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.content:
        blocks.append({"type": "text", "text": answer.content})
    for call in answer.tool_calls:
        called = parsed_arguments(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": called})
    return blocks
