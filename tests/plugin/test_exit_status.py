"""The exit status is pytest's own, 16 where there was no engine; a foreign run loop is respected."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.waiting import until

Suite = Callable[..., pytest.Pytester]
Counts = Callable[[], dict[str, int]]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), pytest.ExitCode.OK),
        (("--gate", "reward >= 0.9"), pytest.ExitCode.TESTS_FAILED),
        (("-k", "nothing_of_this_name"), pytest.ExitCode.NO_TESTS_COLLECTED),
        (("--limit=0",), pytest.ExitCode.USAGE_ERROR),
        (("no_such_file.py",), pytest.ExitCode.USAGE_ERROR),
    ],
)
def test_exit_statuses_are_pytests(suite: Suite, arguments: tuple[str, ...], status: pytest.ExitCode) -> None:
    assert suite(rows=3, more=', gates=["reward >= 0.1"]').runpytest(*arguments).ret == status


def test_an_error_in_another_file_stops_before_anything_is_submitted(suite: Suite, engine_counts: Counts) -> None:
    made = suite(rows=3)
    made.makepyfile(test_broken="import no_such_module")
    result = made.runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*Interrupted: 1 error during collection*"])
    assert engine_counts() == {}
    assert made.runpytest("--continue-on-collection-errors").parseoutcomes() == {"passed": 2, "missed": 1, "errors": 1}


@pytest.mark.parametrize("order", ["completion", "collection"])
def test_an_engine_that_does_not_start_is_one_message_and_16(suite: Suite, order: str) -> None:
    """B4: not the same traceback for each of 300 items."""
    made = suite(rows=300)
    made.makeconftest(
        """
import pytest
from pytest_areal_eval.controller import RolloutController
from pytest_areal_eval.errors import EngineStartError
from pytest_areal_eval.plugin import RUN
from pytest_areal_eval.session.session import SESSION
from support.rule_engine import RuleEngine

def fail():
    raise EngineStartError("the server ended with 1: out of memory", hint="Ask for less.")

@pytest.fixture(scope="session")
def controller(pytestconfig):
    made = RolloutController(RuleEngine(lambda question, n: ""))
    pytestconfig.stash[SESSION].launch(made, fail)
    yield made
    made.destroy()
"""
    )
    result = made.runpytest(f"--areal-order={order}")
    text = result.stdout.str()
    assert result.ret == 16
    assert len(result.outlines) < 40
    assert "Ask for less." in text
    assert text.count("out of memory") <= 3


def test_ctrl_c_ends_at_once_with_the_partial_table(suite: Suite, engine_counts: Counts) -> None:
    """C7: waiting can be interrupted; what had finished is in the table and in the journal."""
    made = suite(
        rows=6, latency="lambda question: 0.0 if question in ('q0', 'q1') else 600.0", more=', gates=["reward>0"]'
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist"]
    with (made.path / "out.txt").open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=made.path,
            stdout=out,
            stderr=out,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            until(lambda: ".m" in (made.path / "out.txt").read_text(), "two reports", 30)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=15) == pytest.ExitCode.INTERRUPTED
        finally:
            process.kill()
    text = (made.path / "out.txt").read_text()
    assert "KeyboardInterrupt" in text
    assert "2/6" in text
    assert "gates not decided, the session ended before: test_gsm reward > 0\n" in text
    assert "; to go on: the same command and --resume\n" in text
    assert engine_counts()["cancelled"] == 4


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_never_cuts_a_report_in_two(suite: Suite, name: str) -> None:
    """Not in a hook that a plugin wraps in the old way, as pytest-html does: that would be an internal error."""
    made = suite(rows=6)
    made.makepyfile(
        old_wrapper=f"""
import os, signal
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        os.kill(os.getpid(), signal.{name})
    outcome.get_result()
"""
    )
    result = made.runpytest_subprocess("-p", "old_wrapper", "-W", "error")
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.INTERRUPTED, text
    assert "KeyboardInterrupt" in text
    assert "INTERNALERROR" not in text


def test_a_second_ctrl_c_leaves_no_passed_run(suite: Suite) -> None:
    """It comes while pytest looks at the first, whose exit status is not noted before."""
    made = suite(rows=2)
    made.makepyfile(
        impatient="""
import pytest

def pytest_runtest_logreport(report):
    raise KeyboardInterrupt

@pytest.hookimpl(trylast=True)
def pytest_keyboard_interrupt(excinfo):
    raise KeyboardInterrupt
"""
    )
    made.runpytest_subprocess("-p", "impatient")
    (run,) = (made.path / "eval-results").glob("2*/run.json")
    assert json.loads(run.read_text())["exit_status"] == pytest.ExitCode.INTERRUPTED


def test_a_foreign_run_loop_gets_the_tests_in_collection_order(suite: Suite) -> None:
    """C7: another plugin's loop runs; ours steps aside and the results are the same."""
    made = suite(rows=6, more=', gates=["reward >= 0.6"]')
    made.makepyfile(
        loop_plugin="""
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    for number, item in enumerate(session.items):
        following = session.items[number + 1] if number + 1 < len(session.items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    print("foreign loop")
    return True
"""
    )
    made.syspathinsert()
    result = made.runpytest("-p", "loop_plugin", "-s")
    assert result.parseoutcomes() == {"passed": 5, "missed": 2}
    result.stdout.fnmatch_lines(["*foreign loop*", "gate PASS*"])


def test_pytest_exit_in_a_test_leaves_gates_undecided(suite: Suite) -> None:
    source = """
import pytest
from pytest_areal_eval import evaluation

@evaluation([{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(3)],
            workflow="support.ask.Ask", gates=["reward >= 0.1"])
def test_gsm(rollout):
    pytest.exit("enough", returncode=7)
"""
    result = suite(source=source).runpytest()
    assert result.ret == 7
    assert "gate PASS" not in result.stdout.str()


def test_gate_reports_are_three_phases_that_plugins_understand(suite: Suite) -> None:
    made = suite(rows=3, more=', gates=["reward >= 0.9", "reward >= 0.1"]')
    recorder = made.inline_run()
    reports: list[Any] = [r for r in recorder.getreports("pytest_runtest_logreport") if "gate[" in r.nodeid]
    assert [r.when for r in reports] == ["setup", "call", "teardown"] * 2
    assert [r.outcome for r in reports if r.when == "call"] == ["failed", "passed"]
    assert dict(reports[1].user_properties)["areal_n"] == 3
