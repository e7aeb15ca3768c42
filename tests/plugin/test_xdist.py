"""pytest-xdist: workers attach to what the controlling process owns, and the verdicts are over all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

pytest.importorskip("xdist")

Suite = Callable[..., pytest.Pytester]
Counts = Callable[[], dict[str, int]]

TWO = """
from pytest_areal_eval import evaluation

def rows(count):
    return [{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(count)]

@evaluation(rows(6), workflow="support.ask.Ask", gates=["reward >= 0.6"])
def test_gsm(rollout):
    pass

@evaluation(rows(4), workflow="support.ask.Ask", gates=["reward >= 0.8"])
def test_math(rollout):
    pass

def test_plain():
    pass
"""
WHOLE = {"passed": 4 + 3 + 1 + 1, "missed": 2 + 1, "failed": 1}


def run_json(made: pytest.Pytester) -> dict[str, Any]:
    """The only run's description."""
    (file,) = (made.path / "eval-results").glob("2*/run.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize(("mode", "peak"), [("load", 2), ("worksteal", 2), ("loadscope", 10), ("loadfile", 10)])
def test_results_of_all_workers_are_one_table_one_run_and_one_verdict(
    suite: Suite, journal_rows: Any, engine_counts: Counts, mode: str, peak: int
) -> None:
    """D3: a worker submits what it is known to run, and nothing twice; modes that keep a file together know more."""
    made = suite(source=TWO, latency="0.1")
    result = made.runpytest("-n2", f"--dist={mode}", "--junitxml=out.xml")
    assert result.parseoutcomes() == WHOLE
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_gsm *0.6667*", "test_math *0.7500*", "gate PASS*", "gate FAIL*0.7500 < 0.8*"])
    keys = sorted((row["evaluation"], row["item_id"]) for row in journal_rows())
    assert keys == sorted([("test_gsm", f"g{n}") for n in range(6)] + [("test_math", f"g{n}") for n in range(4)])
    assert engine_counts()["peak"] == peak
    run = run_json(made)
    assert run["status"] == "finished"
    assert run["evaluations"]["test_gsm"]["summary"]["n_items"] == 6
    assert (made.path / "out.xml").read_text().count("areal_reward") == 10


@pytest.mark.parametrize("option", ["-n0", "--dist=no"])
def test_without_workers_nothing_changes(suite: Suite, engine_counts: Counts, option: str) -> None:
    result = suite(source=TWO, latency="0.1").runpytest(option)
    assert result.parseoutcomes() == WHOLE
    assert engine_counts()["peak"] == 10


def test_dist_each_is_refused(suite: Suite) -> None:
    """B3: every item would be scored once a worker."""
    result = suite(source=TWO).runpytest("-n2", "--dist=each")
    refused(
        result, pytest.ExitCode.USAGE_ERROR, "--dist=each runs every item on every worker", "Use another --dist mode"
    )


def test_a_suite_without_evaluations_starts_nothing(suite: Suite) -> None:
    made = suite(source="def test_plain(): pass")
    assert made.runpytest("-n2").parseoutcomes() == {"passed": 1}
    assert not (made.path / "eval-results").exists()


def test_a_crashed_worker_leaves_the_gate_undecided_with_the_counts(suite: Suite) -> None:
    """D3: the summary must not silently speak of fewer items; C16: the gate is skipped."""
    source = TWO.replace("def test_gsm(rollout):\n    pass", CRASH, 1)
    result = suite(source=source).runpytest("-n2", "--max-worker-restart=0", "-rs", "-k", "test_gsm", "--gate-partial")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*worker 'gw?' crashed while running 'test_evals.py::test_gsm?g3?'*"])
    again = suite(source=source).runpytest("-n2", "--max-worker-restart=0", "-rs", "test_evals.py")
    again.stdout.fnmatch_lines(["*SKIPPED*of 6 items were reported*"])
    assert "gate PASS  test_gsm" not in again.stdout.str()


CRASH = """def test_gsm(rollout):
    if rollout.item_id == "g3":
        import os
        os._exit(1)"""


def test_a_typo_in_a_gate_is_one_usage_error_under_workers_too(suite: Suite) -> None:
    """C109."""
    result = suite(source=TWO).runpytest("-n2", "--gate", "test_gms:reward >= 0.9")
    refused(result, pytest.ExitCode.USAGE_ERROR, "no selected evaluation is named 'test_gms'")


def test_what_a_worker_finds_wrong_later_is_said_whole_by_the_owner(suite: Suite) -> None:
    """With the hint, and with the exit status that it has without workers."""
    made = suite(source=TWO)
    conftest = made.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace('scope="session"', 'scope="function"'))
    result = made.runpytest("-n2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["Give 'controller' scope='module' or wider, or make the object inside the test."])


def test_lf_and_k_work_with_workers(suite: Suite) -> None:
    made = suite(source=TWO)
    made.runpytest("-n2")
    again = made.runpytest("-n2", "--lf", "-rs")
    assert again.parseoutcomes() == {"missed": 3, "skipped": 2}
    again.stdout.fnmatch_lines(["*2 of 6 items were selected*"])


def test_x_stops_the_workers(suite: Suite) -> None:
    source = TWO.replace("def test_plain():\n    pass", "def test_plain():\n    assert 0")
    result = suite(source=source).runpytest("-n2", "-x", "-k", "plain or math")
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    assert "gate PASS" not in result.stdout.str()


def test_sigterm_ends_a_session_with_workers_as_ctrl_c_does(suite: Suite) -> None:
    """C7, C92: with the table of what was reported, and a run that is closed; jobs of a cluster end at once."""
    made = suite(source=TWO, latency="0.1")
    made.makepyfile(
        terminated="""
import os, signal

def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" not in os.environ and hasattr(report, "areal_eval"):
        os.kill(os.getpid(), signal.SIGTERM)
"""
    )
    result = made.runpytest_subprocess("-n2", "-p", "terminated")
    assert result.ret == pytest.ExitCode.INTERRUPTED, result.stdout.str()
    result.stdout.fnmatch_lines(["gates not decided*", "*KeyboardInterrupt: SIGTERM*"])
    assert run_json(made)["exit_status"] == pytest.ExitCode.INTERRUPTED


def test_several_models_with_workers_are_refused(suite: Suite) -> None:
    result = suite(source=TWO).runpytest("-n2", "--model=a", "--model=b")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--model" in result.stderr.str()


def test_the_engine_starts_once_for_all_workers(pytester: pytest.Pytester) -> None:
    """D1: the controlling process owns the server; two workers use it."""
    checkpoint = Path(__file__).parents[2] / "models" / "tiny-math"
    pytester.makepyfile(
        test_evals="""
        from pytest_areal_eval import evaluation

        ROWS = [{"id": f"r{n}", "prompt": f"{n} + {n} = ?", "answer": str(2 * n)} for n in range(4)]

        @evaluation(ROWS, max_new_tokens=4, pass_mark=0)
        async def test_sum(item, engine):
            await engine.chat([{"role": "user", "content": item["prompt"]}])
            return 1.0
        """
    )
    result = pytester.runpytest_subprocess("-n2", f"--model={checkpoint}", "-p", "no:randomly", "-p", "no:cov")
    assert result.parseoutcomes() == {"passed": 4}
    run = run_json(pytester)
    assert [event["kind"] for event in run["events"]].count("ready") == 1
    assert run["models"][str(checkpoint)]["fingerprint"]["digest"]
