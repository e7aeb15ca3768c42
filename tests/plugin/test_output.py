"""What is printed and written: only through pytest's reporter, one line for each thing, nothing foreign raw."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from pytest_areal_eval.report import live

Suite = Callable[..., pytest.Pytester]

GATED = ', gates=["reward >= 0.5"]'


@pytest.mark.parametrize(
    "arguments",
    [
        ("-p", "no:terminal"),
        ("-p", "no:logging"),
        ("-p", "no:cacheprovider"),
        ("-s",),
        ("-p", "no:capture"),
        ("-W", "error"),
        ("--strict-markers", "--strict-config"),
        ("--log-cli-level=DEBUG",),
        ("-p", "no:xdist"),
        ("-p", "no:warnings"),
        ("--tb=no", "-rA"),
        ("--color=yes", "-v"),
        ("--continue-on-collection-errors",),
    ],
    ids=" ".join,
)
def test_switches_of_pytest_change_no_result(suite: Suite, arguments: tuple[str, ...]) -> None:
    made = suite(rows=3, more=GATED)
    recorder = made.inline_run(*arguments)
    assert recorder.ret == pytest.ExitCode.OK
    calls = [report for report in recorder.getreports("pytest_runtest_logreport") if report.when == "call"]
    assert [report.outcome for report in calls] == ["passed"] * 4


def test_two_qs_print_neither_table_nor_header_nor_live_line(suite: Suite) -> None:
    """C103: an agent that reads the output asks for quiet and gets it."""
    result = suite(rows=3, more=GATED).runpytest("-q", "-q")
    assert not [line for line in result.outlines if re.search("areal|gate|reward|test_gsm", line)]
    assert result.ret == pytest.ExitCode.OK


def test_an_unrelated_suite_sees_nothing_of_the_plugin(suite: Suite) -> None:
    """An idle plugin prints nothing and imports nothing heavy."""
    source = """
import sys

def test_plain():
    heavy = {"torch", "transformers", "aiohttp", "scipy", "datasets", "pebble", "math_verify", "rich.table", "numpy"}
    ours = {name for name in sys.modules if name.startswith("pytest_areal_eval")}
    assert not heavy & set(sys.modules)
    assert ours <= {"pytest_areal_eval." + name for name in (
        "plugin", "errors", "hooks", "options", "options.settings", "options.declarations", "options.values", "session",
        "session.fixtures")
    } | {"pytest_areal_eval"}
"""
    made = suite(source=source)
    made.makeconftest("")
    result = made.runpytest_subprocess("-p", "no:xdist")
    assert result.parseoutcomes() == {"passed": 1}
    assert "areal-eval:" not in result.stdout.str()


def test_a_failing_gate_shows_the_worst_items_with_what_was_extracted(suite: Suite) -> None:
    """C45: a score that fell for a parser's fault is seen by the answers, in the log of the CI and in JUnit."""
    rule = "n = int(question[1:]); return f'a{n}' if n % 2 else chr(27) + f'[2J{n} apples'"
    made = suite(rows=14, rule=rule, more=', gates=["reward >= 0.9", "error_rate <= 0.5"]')
    result = made.runpytest("--junitxml=out.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "test_gsm: reward 0.5000 < 0.9 *",
            "5 of 7 missed items:",
            "  item * reward * status * answer *gold",
            "  g0 * 0 * scored * ?[[]2J0 apples",
            "  g10 * 0 * scored * ?[[]2J10 apples",
        ]
    )
    assert result.stdout.str().count(" apples") == 5
    (failure,) = ET.parse(made.path / "out.xml").getroot().iter("failure")
    assert "10 apples" in str(failure.text)


def test_junit_has_the_rollouts_time_the_scores_and_the_gates(suite: Suite) -> None:
    made = suite(rows=3, more=', gates=["reward >= 0.9"]', latency="0.3 if False else 0.2")
    made.runpytest("--junitxml=out.xml", "-o", "junit_family=xunit2")
    (found,) = ET.parse(made.path / "out.xml").getroot()
    assert found.attrib["tests"] == "4"
    assert found.attrib["failures"] == "1"
    cases = {case.attrib["name"]: case for case in found}
    assert float(cases["test_gsm[g0]"].attrib["time"]) >= 0.2
    values = {p.attrib["name"]: p.attrib["value"] for p in cases["test_gsm[g1]"].iter("property")}
    assert values["areal_reward"] == "0.0"
    (gate,) = [case for name, case in cases.items() if "gate" in name]
    assert gate.find("failure") is not None


def test_durations_are_the_rollouts(suite: Suite) -> None:
    slow = "lambda question: 0.4 if question == 'q2' else 0.0"
    result = suite(rows=3, latency=slow).runpytest("--durations=1", "--durations-min=0.1")
    result.stdout.re_match_lines([r"0\.[4-9]\ds call\s+test_evals.py::test_gsm\[g2\]"])


def test_progress_ends_at_a_hundred_percent_with_the_gates(suite: Suite) -> None:
    """B5.10."""
    result = suite(rows=3, more=GATED).runpytest("-v")
    assert not re.search(r"\[1[1-9]\d%\]", result.stdout.str())
    result.stdout.fnmatch_lines(["*::gate?reward >= 0.5? PASSED*100%*"])


def test_a_record_logged_in_an_episode_is_not_lost(suite: Suite) -> None:
    source = """
import logging
from pytest_areal_eval import evaluation

@evaluation([{"id": "g0"}])
async def test_own(item, engine):
    logging.getLogger("mine").warning("asked %s", item["id"])
    return 1.0
"""
    result = suite(source=source).runpytest("--log-cli-level=INFO")
    result.stdout.fnmatch_lines(["*WARNING*asked g0*"])


HOSTILE = "\\x1b[2J\\x1b]0;owned\\x07\\r\\u202egnp"


def test_control_characters_in_answers_never_reach_the_terminal(suite: Suite) -> None:
    """What a model writes may be an escape sequence: the terminal must not obey it."""
    source = f"""
from pytest_areal_eval import evaluation

ROWS = [{{"id": f"g{{n}}", "question": "q0", "answer": "a"}} for n in range(2)]

@evaluation(ROWS, workflow="support.ask.Ask")
def test_strict(rollout):
    assert rollout.text == "{HOSTILE}"
    raise ValueError(rollout.text)

@evaluation(ROWS)
async def test_own(item, engine):
    reply = await engine.chat([{{"role": "user", "content": "q0"}}])
    assert reply.text == "x", reply.text

@evaluation(ROWS)
async def test_raises(item, engine):
    reply = await engine.chat([{{"role": "user", "content": "q0"}}])
    raise RuntimeError(reply.text)
"""
    result = suite(source=source, rule=f'return "{HOSTILE}"').runpytest(
        "-rA", "-vv", "--color=no", "--junitxml=out.xml"
    )
    assert result.parseoutcomes()["failed"] == 6
    text = result.stdout.str()
    assert not set(text) & {"\x1b", "\x07", "\u202e"}


def run_on_a_terminal(made: pytest.Pytester, *arguments: str) -> str:
    """Everything that pytest writes to a real pseudo-terminal of 100 columns."""
    main, other = pty.openpty()
    environment = os.environ | {"COLUMNS": "100", "TERM": "xterm"}
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", *arguments]
    process = subprocess.Popen(command, cwd=made.path, stdout=other, stderr=other, stdin=other, env=environment)
    os.close(other)
    chunks = []
    try:
        while chunk := os.read(main, 65536):
            chunks.append(chunk)
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(main)
        process.wait(timeout=30)
    return b"".join(chunks).decode(errors="replace")


def screen(text: str, rows: int = 200, columns: int = 100) -> list[str]:
    """What a terminal shows after all of it; knows the few controls that pytest and the live line use."""
    lines = [[" "] * columns for _ in range(rows)]
    y = x = 0
    for control, char in re.findall(r"(\x1b\[[\d;?]*[A-Za-z]|\x1b\][^\x1b\x07]*(?:\x07|\x1b\\))|(.)", text, re.DOTALL):
        if control:
            number = int(re.sub(r"\D", "", control) or 1)
            if control.endswith("A"):
                y = max(y - number, 0)
            elif control.endswith("C"):
                x = min(x + number, columns - 1)
            elif control.endswith("K"):
                lines[y] = [" "] * columns if control == "\x1b[2K" else lines[y][:x] + [" "] * (columns - x)
        elif char == "\r":
            x = 0
        elif char == "\n":
            y += 1
        else:
            lines[y][min(x, columns - 1)] = char
            x += 1
    return ["".join(line).rstrip() for line in lines]


@pytest.mark.skipif(not hasattr(pytest.TerminalReporter, "write_raw"), reason="this pytest cannot write raw text")
def test_on_a_terminal_a_live_line_shows_progress_and_leaves_no_trace(suite: Suite) -> None:
    slow = "lambda question: 2.2 if question == 'q5' else 0.0"
    text = run_on_a_terminal(suite(rows=6, latency=slow, more=GATED))
    assert re.search(r"\[test_gsm\]  5/6  reward 0\.600 ± 0\.245", text), text
    assert re.search(r"oldest g5 [12]\.\ds", text)
    shown = screen(text)
    assert not [line for line in shown if "[test_gsm]" in line]
    (dots,) = [line for line in shown if line.startswith("test_evals.py ")]
    assert re.fullmatch(r"test_evals\.py \.m\.\.m\.\.\s+\[100%\]", dots), dots
    assert [line for line in shown if line.startswith("gate PASS")]


def test_with_q_q_a_terminal_shows_no_live_line(suite: Suite) -> None:
    text = run_on_a_terminal(suite(rows=2, latency="1.2"), "-qq")
    assert "test_gsm" not in text


@pytest.mark.parametrize("arguments", [(), ("-q",)])
def test_off_a_terminal_there_is_a_line_a_minute(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """C103: bars that are redrawn flood a CI's log; the first line comes after 10 s, then one a minute."""
    assert (live.QUIET_FIRST_S, live.QUIET_EVERY_S) == (10.0, 60.0)
    monkeypatch.setattr("pytest_areal_eval.report.live.QUIET_EVERY_S", 0.3)
    monkeypatch.setattr("pytest_areal_eval.report.live.QUIET_FIRST_S", 0.3)
    slow = "lambda question: 1.0 if question == 'q2' else 0.0"
    result = suite(rows=3, latency=slow).runpytest(*arguments)
    lines = [line for line in result.outlines if line.startswith("[test_gsm]")]
    assert 2 <= len(lines) <= 4
    assert "2/3" in lines[-1]
    assert "\x1b" not in result.stdout.str()
