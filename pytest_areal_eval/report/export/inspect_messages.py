"""An episode as the messages that Inspect shows; tool calls and their results are tied by their ids."""

from __future__ import annotations

from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.proxy.parsing import parsed_arguments
from pytest_areal_eval.report.transcript import ToolCall, Turn, turns_of

Message = dict[str, Any]


def messages_of(e: Episode, model: str) -> list[Message]:
    """An agent's whole conversation, else the prompt and the answer."""
    turns = turns_of(e)
    if not turns:
        prompt = {"role": "user", "content": e.prompt, "source": "input"}
        return [prompt, answer_message(e.completion, e.reasoning, model)]
    names = {call.id: call.name for turn in turns for call in turn.calls}
    return [_message(turn, model, names) for turn in turns]


def answer_message(text: str, reasoning: str, model: str) -> Message:
    """What a model said."""
    content: Any = text
    if reasoning:
        content = [{"type": "reasoning", "reasoning": reasoning}, {"type": "text", "text": text}]
    return {"role": "assistant", "content": content, "source": "generate", "model": model}


def _message(turn: Turn, model: str, names: dict[str, str]) -> Message:
    if turn.role == "assistant":
        calls = [_call(call) for call in turn.calls]
        return answer_message(turn.text, turn.reasoning, model) | ({"tool_calls": calls} if calls else {})
    if turn.role == "tool":
        function = names.get(turn.answers, "")
        return {"role": "tool", "content": turn.text, "tool_call_id": turn.answers, "function": function}
    return {"role": turn.role if turn.role == "system" else "user", "content": turn.text}


def _call(call: ToolCall) -> Message:
    arguments = parsed_arguments(call.arguments)
    return {"id": call.id, "function": call.name, "arguments": arguments, "type": "function"}
