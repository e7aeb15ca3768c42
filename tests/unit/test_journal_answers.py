"""What a resumed run takes from a journal: finished episodes as they are, and the answers of the others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.runs import episode, write_run

from pytest_areal_eval.api import GIVEN_UP, EpisodeStatus, ModelRequest
from pytest_areal_eval.journal import Answer, Journal, Problem, finished_and_owed, latest_answers, request_key
from pytest_areal_eval.options.declarations import NEWEST
from pytest_areal_eval.runs.history import History, find


def answer(item: str, request: int = 1, index: int = 0, text: str = "x", evaluation: str = "") -> Answer:
    return Answer(evaluation, item, index, request, "0123456789abcdef", {"text": text, "output_tokens": []})


def test_answers_are_kept_of_what_is_owed_alone(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append_answer(answer("done"))
        journal.append_answer(answer("owed", 2, text="second"))
        journal.append(episode("done"))
        journal.append_answer(answer("owed", 1, text="old"))
        journal.append_answer(answer("owed", 1, text="first"))
        journal.append_answer(answer("lost"))
        journal.append(episode("lost", reward=None, status=EpisodeStatus.ENGINE_LOST))
    finished, answers = finished_and_owed(tmp_path, GIVEN_UP)
    assert list(finished) == [("", "done", 0)]
    assert {key: [a.response["text"] for a in found] for key, found in answers.items()} == {
        ("", "owed", 0): ["first", "second"],
        ("", "lost", 0): ["x"],
    }
    assert len(latest_answers(tmp_path)) == 3


@pytest.mark.parametrize("name", ["tést", 'a "quoted", "request":1', "line\u2028end"])
def test_any_name_of_an_evaluation_is_recognized(tmp_path: Path, name: str) -> None:
    """A line that needs escapes is written in ASCII, so that a name may be spelt in two ways."""
    with Journal.open(tmp_path) as journal:
        for item in ("plain", "odd"):
            journal.append_answer(answer(item, evaluation=name))
        for item, text in (("plain", "x"), ("odd", "\u2028")):
            journal.append(episode(item, evaluation=name, completion=text))
    finished, answers = finished_and_owed(tmp_path, GIVEN_UP)
    assert [key[:2] for key in finished] == [(name, "plain"), (name, "odd")]
    assert answers == {}


def test_a_torn_answer_is_told_and_asked_for_again(tmp_path: Path) -> None:
    """C29c: every cut of an answer's line leaves the others as they are."""
    with Journal.open(tmp_path) as journal:
        journal.append_answer(answer("a"))
    path, whole = tmp_path / "episodes.jsonl", (tmp_path / "episodes.jsonl").read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole + whole.replace(b'"a"', b'"b"')[:cut])
        problems: list[Problem] = []
        _, answers = finished_and_owed(tmp_path, GIVEN_UP, problems)
        lacks_its_end_alone = cut == len(whole) - 1
        assert list(answers) == [("", "a", 0), *([("", "b", 0)] if lacks_its_end_alone else [])]
        assert len(problems) == (cut > 0 and not lacks_its_end_alone)


def test_skipping_what_is_done_costs_microseconds_an_episode(tmp_path: Path) -> None:
    """C22: 100,000 are skipped within a second on an idle machine; the limit here leaves room for a busy one."""
    with Journal.open(tmp_path) as journal:
        for item in range(10_000):
            journal.append_answer(answer(str(item), text="x" * 600))
            journal.append(episode(str(item), completion="x" * 500))
    (tmp_path / "run.json").write_text("{}")
    started = time.process_time()
    history = History("resume", tmp_path)
    assert not any(history.owes("", str(item), 1) for item in range(10_000))
    assert time.process_time() - started < 0.5


def test_a_request_that_asks_for_a_form_is_another_one() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    asked: list[dict[str, Any]] = [{}, {"logprobs": True}, {"response_format": form}, {"tool_choice": "required"}]
    keys = [request_key(ModelRequest(input_ids=[1, 2], metadata=metadata)) for metadata in asked]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_the_newest_run_is_one_that_has_answers(tmp_path: Path) -> None:
    """A session that was refused leaves a run; to resume that one would be to begin anew."""
    answered = write_run(tmp_path / "answered", {"e": [episode("a")]}, info={"started_at": 1.0})
    empty = write_run(tmp_path / "empty", {"e": []}, info={"started_at": 2.0})
    assert find("resume", NEWEST, tmp_path, ["e"]) == answered
    (empty / "episodes.gw0.jsonl").write_text("{}\n")  # of a worker
    assert find("resume", NEWEST, tmp_path, ["e"]) == empty
