"""pytest-xdist and an earlier run: the controlling process holds it; workers report what is kept, do what is owed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.graded import EXACT, GRADED, LENIENT
from support.refusals import refused

from pytest_areal_eval.journal import RunFolder, read_episodes
from pytest_areal_eval.report.saved import list_runs

pytest.importorskip("xdist")

Suite = Callable[..., pytest.Pytester]
Counts = Callable[[], dict[str, int]]

WHOLE = {"passed": 16, "missed": 8}


def newest(made: pytest.Pytester) -> Path:
    """The run that was made last."""
    return max(list_runs(made.path / "eval-results"), key=lambda run: run_json(run)["started_at"])


def run_json(run: Path) -> dict[str, Any]:
    """A run's description."""
    found: dict[str, Any] = json.loads((run / "run.json").read_text())
    return found


def summary(run: Path) -> dict[str, Any]:
    """A run's summaries, without what is measured by the clock."""
    evaluations = run_json(run)["evaluations"]
    return {name: {k: v for k, v in e["summary"].items() if not k.endswith("_s")} for name, e in evaluations.items()}


def finished(run: Path) -> dict[tuple[str, int], float]:
    """The reward of each episode in a run's journals, the last line of which may be torn."""
    return {(row["item_id"], row["index"]): row["reward"] for row in read_episodes(run, [])}


def kill(made: pytest.Pytester, *args: str, after: int) -> Path:
    """Run the suite, and SIGKILL the controlling process once its run holds ``after`` episodes; the run's folder."""
    command = [sys.executable, "-m", "pytest", "-q", *args]
    with subprocess.Popen(command, cwd=made.path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 60
        while not (runs := list_runs(made.path / "eval-results")) or len(finished(runs[0])) < after:
            assert process.poll() is None
            assert time.monotonic() < end, f"no {after} episodes within 60 s"
            time.sleep(0.01)
        process.kill()
        process.communicate(timeout=60)
    return runs[0]


@pytest.mark.parametrize(("before", "then"), [("-n2", "-n2"), ("-n0", "-n2"), ("-n2", "-n0")])
def test_a_killed_run_goes_on_with_and_without_workers(suite: Suite, before: str, then: str) -> None:
    """C20, C28: killed halfway; what is kept is not asked again, and the sums are those of an uninterrupted run."""
    made = suite(rows=12, latency="0.05", concurrency=2, more=', n_samples=2, gates=["reward >= 0.5"]')
    run = kill(made, before, after=8)
    with (run / "episodes.jsonl").open("a") as journal:
        journal.write('{"v":1,"kind":"episode","evalu')  # torn
    kept = finished(run)
    assert 8 <= len(kept) < 24
    result = made.runpytest(then, "--resume")
    assert result.ret == pytest.ExitCode.OK, result.stdout.str()
    assert result.parseoutcomes() == {"passed": 8 + 1, "missed": 4}
    result.stdout.fnmatch_lines([f"*resumes {run.name}: * of 24 episodes are there", f"run: eval-results/{run.name}"])
    assert len(list(read_episodes(run, []))) == len(finished(run)) == 24
    asked = [line for line in (run / "episodes.jsonl").read_text().splitlines() if '"kind":"generation"' in line]
    assert len(asked) <= 24 + 4  # what was under way when it was killed
    assert not list(run.glob("episodes.*.jsonl"))
    assert len(run_json(run)["resumed"]) == 1
    made.runpytest()
    assert newest(made) != run
    assert summary(run) == summary(newest(made))


def test_where_nothing_is_owed_workers_ask_nothing(suite: Suite) -> None:
    """C28: as often as it is resumed; while another process holds the run, it is one message."""
    made = suite(rows=6)
    first = made.runpytest()
    (made.path / "engine.json").unlink()
    before = (newest(made) / "episodes.jsonl").read_bytes()
    for _ in range(2):
        again = made.runpytest("-n2", "--resume")
        assert again.parseoutcomes() == first.parseoutcomes()
    assert not (made.path / "engine.json").exists()
    assert (newest(made) / "episodes.jsonl").read_bytes() == before
    assert len(run_json(newest(made))["resumed"]) == 2
    with RunFolder.open(newest(made)):
        result = made.runpytest("-n2", "--resume")
        refused(result, pytest.ExitCode.USAGE_ERROR, "is held by process * on *")


def test_workers_grade_anew_and_judge_anew(suite: Suite) -> None:
    made = suite(source=GRADED)
    (made.path / "grading.py").write_text(EXACT)
    assert made.runpytest_subprocess().ret == pytest.ExitCode.TESTS_FAILED  # or this process would know the reward
    run = newest(made)
    (made.path / "engine.json").unlink()
    (made.path / "grading.py").write_text(LENIENT)
    said = ("test_gsm: the code of its reward_fn changed", f"--rescore={run.name}")
    refused(made.runpytest("-n2", "--resume"), pytest.ExitCode.USAGE_ERROR, *said)
    result = made.runpytest("-n2", f"--rescore={run.name}")
    assert result.ret == pytest.ExitCode.OK, result.stdout.str()
    again = newest(made)
    assert run_json(again)["rescored_from"] == run.name
    assert finished(run)["g1", 0] == 0.0
    assert finished(again) == {(f"g{n}", 0): 1.0 for n in range(4)}
    refused(made.runpytest("-n2", f"--resume={again.name}"), pytest.ExitCode.USAGE_ERROR, "was graded from")
    before = {path: path.read_bytes() for path in again.iterdir() if path.is_file()}
    compared = ("-n2", f"--from-run={again.name}", "--gate=*:reward >= baseline")
    refused(made.runpytest(*compared, f"--baseline={run.name}"), pytest.ExitCode.USAGE_ERROR, "its reward_fn changed")
    judged = made.runpytest(*compared, f"--baseline={again.name}")
    assert judged.ret == pytest.ExitCode.OK, judged.stdout.str()
    judged.stdout.fnmatch_lines(
        ["baseline test_gsm: reward 1.0000 → *", "gate PASS *baseline*", f"decides on {again.name}: 4 episodes"]
    )
    assert before == {path: path.read_bytes() for path in again.iterdir() if path.is_file()}
    assert len(list_runs(made.path / "eval-results")) == 2
    assert not (made.path / "engine.json").exists()
