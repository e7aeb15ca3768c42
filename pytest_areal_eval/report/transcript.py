"""An agent's calls of the model as one conversation: who said what, and which tools were called with what.

Invariant: an answer is there once; that the agent sent it back with its next call is not shown again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_areal_eval.api import Episode


@dataclass(frozen=True)
class ToolCall:
    """A call that a model asked for; ``arguments`` is JSON, or what the model wrote instead."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Turn:
    """What one side said.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        text: what was said.
        reasoning: of an answer, where the server split it off.
        calls: of an answer.
        answers: of a tool's turn, the call's id.
        cost: of an answer, its tokens and seconds.
    """

    role: str
    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: str = ""
    cost: str = ""


def turns_of(episode: Episode) -> list[Turn]:
    """The conversation of an agent's episode; nothing where the workflow was none."""
    return [turn for number, entry in enumerate(episode.transcript) for turn in _turns(entry, is_first=number == 0)]


def _turns(entry: Mapping[str, Any], *, is_first: bool) -> Iterator[Turn]:
    if "prompt" in entry:
        yield Turn("user", str(entry["prompt"]))
    messages = list(entry.get("messages", ()))
    if not is_first and messages and messages[0].get("role") == "assistant":
        del messages[0]  # the answer before
    for message in messages:
        calls = tuple(_call(c.get("id"), c.get("function", c)) for c in message.get("tool_calls") or ())
        said = _text(message.get("content"))
        yield Turn(str(message.get("role", "user")), said, calls=calls, answers=str(message.get("tool_call_id") or ""))
    calls = tuple(_call(call.get("id"), call) for call in entry.get("tool_calls") or ())
    cost = f"{entry.get('input_tokens', 0)} in, {entry.get('output_tokens', 0)} out, {entry.get('latency_s', 0.0):g} s"
    yield Turn("assistant", _text(entry.get("content")), _text(entry.get("reasoning")), calls, cost=cost)


def _call(call_id: Any, function: Mapping[str, Any]) -> ToolCall:
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(call_id or ""), str(function.get("name", "")), text)


def _text(content: Any) -> str:
    """A message's text; of parts, those that are text, and the others by their kind."""
    if isinstance(content, list):
        return "\n".join(
            str(p.get("text", f"[{p.get('type', 'part')}]")) if isinstance(p, dict) else str(p) for p in content
        )
    return "" if content is None else str(content)
