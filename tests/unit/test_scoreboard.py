"""What a session keeps of each report: enough for every number, and no text that grows with the answers."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from support.runs import episode

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.report.examples import example_of
from pytest_areal_eval.report.reasons import reason_of
from pytest_areal_eval.report.scoreboard import Row, Scoreboard
from pytest_areal_eval.report.spans import spans_of
from pytest_areal_eval.report.table import cells_of, notes_of
from pytest_areal_eval.stats import EpisodeResult, ItemResult


def row(**changes: Any) -> Row:
    usual: dict[str, Any] = {"n_samples": 1, "n_selected": 20_000, "n_planned": 20_000, "n_total": 20_000}
    return Row("f.py::e", "e", "e", "", "f.py", [], pass_mark=1.0, **usual | changes)


def report(item: str, reward: float | None, answer: str = "12", **fields: Any) -> pytest.TestReport:
    """A test's report with its result, as the plugin makes it."""
    made = pytest.TestReport(f"f.py::e[{item}]", ("f.py", 1, "e"), {}, "passed", None, "call", start=1.0, stop=2.0)
    one = episode(item, reward=reward, completion="x" * 8000, extracted=answer, **fields)
    carried: dict[str, Any] = {"group": "f.py::e", "word": "" if reward else "missed", "xfail": None}
    carried["spans"] = spans_of([one]).pairs()
    carried["result"] = ItemResult(item, (EpisodeResult.from_episode(one),)).to_dict()
    if not reward:
        carried |= {"example": example_of(item, [one]).to_dict(), "reason": reason_of([one])}
    vars(made)["areal_eval"] = carried
    return made


def test_an_item_costs_less_than_a_kilobyte(tracing: None) -> None:
    """C100: memory grew with the answers: 100,000 of 8 kB ended on machines with 16 GB."""
    board = Scoreboard()
    board.add(row())
    for number in range(100):
        board.receive(report(f"warm{number}", 1.0))
    before = tracemalloc.get_traced_memory()[0]
    for number in range(2000):
        board.receive(report(str(number), float(number % 2)))
    assert (tracemalloc.get_traced_memory()[0] - before) / 2000 < 1000


@pytest.fixture
def tracing() -> Any:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def test_the_worst_items_are_kept_as_examples_and_a_rerun_that_passes_leaves_them() -> None:
    board = Scoreboard()
    mine = row()
    board.add(mine)
    for number in range(9):
        board.receive(report(f"i{number}", 0.0, f"answer {number}"))
    assert [e.item_id for e in mine.examples] == ["i0", "i1", "i2", "i3", "i4"]
    board.receive(report("i2", 1.0))
    assert mine.missed_nodes == {f"f.py::e[i{number}]" for number in range(9) if number != 2}
    assert [e.item_id for e in mine.examples] == ["i0", "i1", "i3", "i4"]
    assert mine.example_lines()[0] == "4 of 8 missed items:"
    assert mine.example_lines()[3].split() == ["i1", "0", "scored", "answer", "1"]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"n_selected": 2, "n_planned": 2, "n_total": 2}, None),
        ({"n_selected": 2, "n_planned": 2}, None),  # --limit draws a random sample
        ({"n_selected": 2, "n_planned": 3}, "2 of 3 items were selected"),
        ({"n_selected": 3, "n_planned": 3}, "2 of 3 items were reported"),
        ({"n_selected": 2, "n_planned": 2, "n_total": 8, "shard": (1, 4)}, "shard 1/4: 2 of 8 items"),
    ],
)
def test_gates_do_not_speak_of_a_part_that_chance_did_not_choose(counts: dict[str, Any], said: str | None) -> None:
    board, mine = Scoreboard(), row(**counts)
    board.add(mine)
    for item in ("a", "b"):
        board.receive(report(item, 1.0))
    assert mine.partial_reason() == said


@pytest.mark.parametrize("name", ["e", "e[p]", "test_x::e[p]", "test_x::e", "f.py::e"])
def test_a_gate_may_name_an_evaluation_by_any_part_that_tells_it(name: str) -> None:
    mine = row()
    mine.name, mine.evaluation = "test_x::e[p-step-1]", "test_x::e[p]"
    assert name in mine.names
    assert "test_x::e[p-step-1]" in mine.names


def test_an_answer_that_was_cut_off_is_counted_whatever_became_of_it() -> None:
    """The column said 1 where the rate, and the gate on it, said 2."""
    board, mine = Scoreboard(), row()
    board.add(mine)
    board.receive(report("a", 1.0, status=EpisodeStatus.TRUNCATED, stop_reason="length"))
    board.receive(report("b", 0.0, status=EpisodeStatus.GRADER_ERROR, stop_reason="length"))
    summary = mine.summary()
    assert cells_of(mine, summary)["truncated"] == "2"
    assert summary.truncation_rate == 1.0
    assert any("100.0% of the episodes were cut off" in note for note in notes_of(mine))


def test_what_all_errors_say_is_told_once() -> None:
    """Not left to be seen in 1,319 reports; addresses, counts and the items' own names do not make them differ."""
    board, mine = Scoreboard(), row()
    board.add(mine)
    for number in range(3):
        error = f"item '{number}': server/{number} said no\nsecond line"
        board.receive(report(str(number), None, status=EpisodeStatus.WORKFLOW_ERROR, error=error))
    shared = "e: all 3 items with errors say the same: server/0 said no"
    assert shared in notes_of(mine)
    board.receive(report("other", None, status=EpisodeStatus.WORKFLOW_ERROR, error="disk full"))
    assert shared.replace("all 3", "3 of 4") in notes_of(mine)
    board.receive(report("1", 1.0))
    board.receive(report("2", 1.0))
    assert not any("say the same" in note for note in notes_of(mine))


def test_an_engine_that_was_lost_is_no_reason_of_items() -> None:
    lost = [episode("a", reward=None, status=EpisodeStatus.ENGINE_LOST, error="gone")]
    assert reason_of(lost) == ""


def test_the_pause_before_a_resumed_run_is_no_part_of_its_wall_time() -> None:
    board = Scoreboard()
    board.add(resumed := row())
    for item, start in (("a", 1000.0), ("b", 1002.0), ("c", 90_000.0)):
        board.receive(report(item, 1.0, started_at=start, latency_s=4.0, output_tokens=50))
    cells = cells_of(resumed, resumed.summary())
    assert (cells["wall"], cells["tok/s"]) == ("10s", "15")
