"""Tool calls and reasoning in a model's text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_areal_eval.proxy.parsing import find_tool_calls, split_reasoning

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"properties": {"n": {"type": "integer"}, "deep": {"type": "boolean"}, "q": {"type": "string"}}},
    },
}


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just words", "just words", []),
        ('<tool_call>{"name": "look", "arguments": {"n": 1}}</tool_call>', "", [("look", {"n": 1})]),
        ('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>\n', "", [("look", {})]),
        ('So: <tool_call>{"name": "look", "parameters": {"n": 1}}</tool_call>', "So:", [("look", {"n": 1})]),
        ('<tool_call>{"name": "look", "arguments": "{\\"n\\": 1}"}</tool_call>', "", [("look", {"n": 1})]),
        ('<tool_call>{"name": "look", "arguments": {"q": "ä"}}', "", [("look", {"q": "ä"})]),
        ('<tool_call>{"name": "a"}</tool_call>\n<tool_call>{"name": "b"}</tool_call>', "", [("a", {}), ("b", {})]),
        (
            "<tool_call>\n<function=look>\n<parameter=n>\n3\n</parameter>\n<parameter=q>\n3\n</parameter>\n"
            "<parameter=deep>\ntrue\n</parameter>\n</function>\n</tool_call>",
            "",
            [("look", {"n": 3, "q": "3", "deep": True})],
        ),
    ],
)
def test_tool_calls_are_found(text: str, content: str, calls: list[tuple[str, object]]) -> None:
    rest, found = find_tool_calls(text, [TOOL])
    assert rest == content
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls
    assert len({call.id for call in found}) == len(calls)


@pytest.mark.parametrize(
    "body", ["{", "[1]", '{"name": 1}', '{"name": "f", "arguments": [1]}', '{"arguments": {}}', ""]
)
def test_a_call_that_cannot_be_read_stays_in_the_content(body: str) -> None:
    text = f"before <tool_call>{body}</tool_call> after"
    assert find_tool_calls(text, [TOOL]) == (text, [])


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    for whole in (text, f"<tool_call>{text}", f"<tool_call><function=f>{text}</function></tool_call>"):
        rest, calls = find_tool_calls(whole, [TOOL])
        assert calls or rest == whole
    reasoning, content = split_reasoning(text)
    assert reasoning in text
    assert content in text


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("42", False, "", "42"),
        ("<think>\nhm\n</think>\n\n42", False, "hm", "42"),
        ("hm\n</think>\n\n42", True, "hm", "42"),
        ("hm and", True, "hm and", ""),
        ("<think>hm and", False, "hm and", ""),
        ("<think></think>42", False, "", "42"),
    ],
)
def test_reasoning_is_split_off(text: str, opened: bool, reasoning: str, content: str) -> None:
    assert split_reasoning(text, opened=opened) == (reasoning, content)
