"""Reasoning and tool calls in a model's text: ``<think>`` as Qwen and DeepSeek write it, tool calls as Hermes does.

Invariant: nothing is lost.  What cannot be read as a tool call stays in the content, where the agent sees it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_CALL = re.compile(r"<tool_call>\s*(?P<body>.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_XML_CALL = re.compile(r"<function=(?P<name>[^>\s]+)>(?P<body>.*)</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=(?P<name>[^>\s]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants called; ``arguments`` is a JSON object's text, as the APIs have it.

    Where a server splits calls off, what it took for a call may hold any text.
    """

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


def parsed_arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; a text that is none stands in one, under ``arguments``."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"arguments": text}


def split_reasoning(text: str, *, opened: bool = False) -> tuple[str, str]:
    """The reasoning and what follows it.

    Args:
        text: what the model wrote.
        opened: the prompt ended with ``<think>``, so the text begins inside of it.
    """
    before, end, after = text.partition("</think>")
    if end:
        return before.strip().removeprefix("<think>").strip(), after.lstrip()
    if opened or text.lstrip().startswith("<think>"):
        return text.strip().removeprefix("<think>").strip(), ""
    return "", text


def find_tool_calls(text: str, tools: Sequence[dict[str, Any]]) -> tuple[str, list[ToolCall]]:
    """What is said beside the calls, and the calls.

    ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` is Hermes' and Qwen's form; Qwen3-Coder writes
    ``<function=NAME><parameter=KEY>VALUE</parameter></function>`` inside.  The last closing tag may be missing, where
    it was the stop string.

    Args:
        text: the content, without its reasoning.
        tools: the schemas that the model was given; parameters written as text are read by their types.
    """
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        call = _from_json(match["body"]) or _from_xml(match["body"], tools)
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    rest = _CALL.sub(take, text)
    return (rest.strip() if calls else rest), calls


def _from_json(body: str) -> ToolCall | None:
    try:
        call = json.loads(body)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(arguments, dict):
        return None
    return ToolCall(call["name"], json.dumps(arguments, ensure_ascii=False))


def _from_xml(body: str, tools: Sequence[dict[str, Any]]) -> ToolCall | None:
    call = _XML_CALL.search(body)
    if call is None:
        return None
    types = _types(call["name"], tools)
    found = _XML_PARAMETER.finditer(call["body"])
    arguments = {p["name"]: _typed(p["value"], types.get(p["name"], "string")) for p in found}
    return ToolCall(call["name"], json.dumps(arguments, ensure_ascii=False))


def _types(name: str, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    schemas = (tool["function"] for tool in tools)
    schema: dict[str, Any] = next((s for s in schemas if s.get("name") == name), {})
    properties = (schema.get("parameters") or {}).get("properties") or {}
    return {key: value.get("type", "string") for key, value in properties.items() if isinstance(value, dict)}


def _typed(value: str, kind: Any) -> Any:
    if kind == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
