"""Prompts and answers of records: which column, what shape, and the row that an error names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_areal_eval.datasets import LoadedDataset, load_dataset, messages_of, prepare, require_columns
from pytest_areal_eval.errors import DatasetError

SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
ASKED = [{"role": "user", "content": "1 + 1?"}]


def dataset(*rows: dict[str, Any]) -> LoadedDataset:
    return load_dataset(list(rows), base_dir=Path("/"))


@pytest.mark.parametrize(
    ("record", "prompt", "messages"),
    [
        ({"question": "1 + 1?"}, None, ASKED),
        ({"messages": SAID, "question": "other"}, None, SAID),
        ({"messages": "1 + 1?"}, None, ASKED),
        ({"messages": None, "input": "x", "problem": "1 + 1?"}, None, ASKED),
        ({"prompt": SAID}, None, SAID),
        ({"question": "other", "text": "1 + 1?"}, "text", ASKED),
        ({"question": "other", "turns": SAID}, "turns", SAID),
        ({"a": 1}, lambda record: f"{record['a']} + {record['a']}?", ASKED),
        ({"a": 1}, lambda record: SAID, SAID),
    ],
)
def test_messages_come_from_the_named_column_a_function_or_the_usual_one(
    record: dict[str, Any], prompt: Any, messages: list[dict[str, Any]]
) -> None:
    assert messages_of(record, prompt) == messages


def test_a_call_of_a_tool_is_a_message_without_content() -> None:
    said = [*SAID, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]
    assert messages_of({"messages": said}, None) == said


def test_messages_are_copies() -> None:
    messages_of({"messages": SAID}, None)[0]["content"] = "changed"
    assert SAID[0]["content"] == "Be brief."


@pytest.mark.parametrize(
    ("record", "prompt", "said"),
    [
        ({"text": "x", "label": 1}, None, "the fields are: text, label"),
        ({"question": 5}, None, "the field 'question' is neither text nor a list of messages but 5"),
        ({"question": []}, None, "neither text nor a list"),
        ({"question": b"x"}, None, "neither text nor a list"),
        ({"messages": ["hello"]}, None, "holds 'hello', which is no message"),
        ({"messages": [{"content": "x"}]}, None, "which is no message"),
        ({"messages": [{"role": "user", "text": "x"}]}, None, "which is no message"),
        ({"messages": [{"role": "user", "content": None}]}, None, "which is no message"),
        ({"messages": [{"role": "user", "content": 5}]}, None, "which is no message"),
        ({"question": "x"}, "qeustion", "there is no field 'qeustion', which is the prompt; the fields are: question"),
        ({"question": None}, "question", "the field 'question' is null, which is the prompt"),
        ({"question": "x"}, lambda record: None, "but None"),
    ],
)
def test_a_record_without_a_usable_prompt_is_an_error(record: dict[str, Any], prompt: Any, said: str) -> None:
    with pytest.raises(DatasetError) as caught:
        messages_of(record, prompt)
    assert said in str(caught.value)
    assert caught.value.hint


def test_a_missing_column_names_row_field_purpose_and_what_is_there() -> None:
    """C106: never a KeyError deep in a map."""
    rows = dataset({"id": "a", "question": "x", "answer": "1"}, {"id": "b", "question": "y", "anwser": "2"})
    require_columns(rows, {"prompt": "question"})
    with pytest.raises(DatasetError) as caught:
        require_columns(rows, {"prompt": "question", "answer": "answer"})
    assert str(caught.value) == (
        "list of 2 records row 1 (id 'b'): there is no field 'answer', which is the answer; "
        "the fields are: id, question, anwser\nDid you mean 'anwser'?"
    )


def test_a_null_field_counts_as_missing() -> None:
    with pytest.raises(DatasetError, match="row 0: the field 'answer' is null"):
        require_columns(dataset({"answer": None}), {"answer": "answer"})


def test_prepare_adds_messages_and_answer_and_keeps_the_rest() -> None:
    row = {"question": "1 + 1?", "gold": "2", "level": 3}
    prepared = prepare(dataset(row), answer="gold")
    assert list(prepared.records) == [{**row, "messages": ASKED, "answer": "2"}]
    assert prepared.records[-1] == prepared.records[0:1][0] == prepared.records[0]
    assert list(prepared.scan()) == list(prepared.records)
    assert prepared.where(0) == "list of 1 records row 0"
    assert "messages" not in row


def test_prepare_calls_a_function_once_for_each_row() -> None:
    calls = iter(range(2))
    prepared = prepare(dataset({"a": 1}, {"a": 2}), prompt=lambda row: f"{next(calls)}", answer=lambda row: row["a"])
    assert [r["messages"][0]["content"] for r in prepared.records] == ["0", "1"]
    assert [r["answer"] for r in prepared.records] == [1, 2]
    assert prepared.records[1]["messages"][0]["content"] == "1"


def test_prepare_leaves_the_answer_out_where_none_is_known() -> None:
    assert "answer" not in prepare(dataset({"question": "x"})).records[0]


def test_records_that_have_both_are_passed_through() -> None:
    ready = dataset({"messages": SAID, "answer": "2"})
    assert prepare(ready) is ready
    with pytest.raises(DatasetError, match="row 1: the field 'messages' holds"):
        prepare(dataset({"messages": SAID, "answer": "2"}, {"messages": [{"content": "x"}], "answer": "2"}))


@pytest.mark.parametrize("which", ["prompt", "answer"])
def test_a_function_that_raises_names_the_row(which: str) -> None:
    rows = dataset({"question": "x", "a": "1"}, {"question": "y", "a": "b"})
    with pytest.raises(DatasetError, match=r"row 1: the prompt or answer function raised ValueError: invalid literal"):
        prepare(rows, **{which: lambda row: str(int(row["a"]))})


def test_a_missing_answer_column_names_the_row_and_the_nearest_field() -> None:
    with pytest.raises(DatasetError, match=r"row 0: there is no field 'answr'(.|\n)*Did you mean 'answer'\?"):
        prepare(dataset({"question": "x", "answer": "1"}), answer="answr")
