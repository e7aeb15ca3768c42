"""The session's one dictionary of statistics: printed where workflows have some, stored, merged over workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_areal_eval.cli import main

Suite = Callable[..., pytest.Pytester]

SOURCE = """
from areal import workflow_context
from areal.api import ModelRequest, RolloutWorkflow
from areal.utils import stats_tracker
from pytest_areal_eval import evaluation

ROWS = [{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(6)]

class Asks(RolloutWorkflow):
    async def arun_episode(self, engine, data):
        with stats_tracker.record_timing("ask"):
            reply = await engine.agenerate(ModelRequest(messages=[{"role": "user", "content": data["question"]}]))
        if data["id"] == "g5":
            raise RuntimeError("never mind")
        reward = float(reply.text == data["answer"])
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward, turns=int(data["id"][1:]))
        return {"rewards": [reward]}

@evaluation(ROWS, workflow=Asks)
def test_gsm(rollout):
    pass
"""


def newest(made: pytest.Pytester) -> Path:
    return max((made.path / "eval-results").glob("*/run.json"), key=lambda p: p.stat().st_mtime_ns).parent


def expected(found: dict[str, Any]) -> None:
    """What each way to run it comes to: g1 and g4 are wrong, and g5 raises."""
    assert found["eval-rollout/reward"] == 0.5
    assert found["eval-rollout/reward__count"] == found["timeperf/ask__count"] == found["timeperf/episode__count"] == 6
    assert (found["eval-rollout/accepted"], found["eval-rollout/rejected"]) == (5.0, 1.0)
    assert (found["eval-rollout/turns"], found["eval-rollout/turns__count"]) == (2.0, 5)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_one_dictionary_is_stored_whoever_ran_the_items(suite: Suite, workers: str) -> None:
    made = suite(source=SOURCE, ini="areal_shim = true", plugins=["xdist"])
    conftest = made.path / "conftest.py"
    conftest.write_text("from areal.api import ModelRequest\n" + conftest.read_text())
    result = made.runpytest("-n", workers)
    result.stdout.fnmatch_lines(["*timeperf/ask*│ eval-rollout/turns *│ 2.0000e+00 │"])
    result.stdout.no_fnmatch_line("*eval-rollout/accepted*")
    expected(json.loads((newest(made) / "stats.json").read_text()))


def test_the_whole_of_it_is_shown_when_asked_for(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    made = suite(source=SOURCE)
    result = made.runpytest("--areal-shim", "-v")
    result.stdout.fnmatch_lines(["*eval-rollout/accepted*5.0000e+00*"])
    folder = newest(made)
    (folder / "stats.json").unlink()  # show reads the journal
    capsys.readouterr()
    assert main(["show", str(folder), "--stats", "--json"]) == 0
    expected(json.loads(capsys.readouterr().out))
    assert main(["show", str(folder), "--stats"]) == 0
    assert "eval-rollout/rejected" in capsys.readouterr().out
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "eval-rollout/turns" in shown
    assert "eval-rollout/accepted" not in shown


def test_a_resumed_run_counts_what_its_first_part_recorded(suite: Suite) -> None:
    made = suite(source=SOURCE)
    made.runpytest("--areal-shim")
    journal = newest(made) / "episodes.jsonl"
    kept = [line for line in journal.read_text().splitlines() if json.loads(line)["item_id"] in ("g0", "g1", "g5")]
    journal.write_text("\n".join(kept) + "\n")
    (newest(made) / "stats.json").unlink()
    result = made.runpytest("--areal-shim", "--resume")
    result.stdout.fnmatch_lines(["*resum*"])
    expected(json.loads((newest(made) / "stats.json").read_text()))
    assert len(list((made.path / "eval-results").glob("20*"))) == 1


def test_a_session_whose_workflows_record_nothing_prints_nothing_more(suite: Suite) -> None:
    made = suite()
    result = made.runpytest()
    result.stdout.no_fnmatch_line("*eval-rollout/*")
    assert json.loads((newest(made) / "stats.json").read_text())["eval-rollout/accepted"] == 6.0


def test_without_the_shim_areals_imports_are_pythons_error(suite: Suite) -> None:
    made = suite(source=SOURCE)
    result = made.runpytest("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*No module named 'areal'*"])
    assert result.ret == pytest.ExitCode.INTERRUPTED
