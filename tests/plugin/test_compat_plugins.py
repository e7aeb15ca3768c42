"""Plugins that people install keep their meaning beside evaluations."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

Suite = Callable[..., pytest.Pytester]
Counts = Callable[[], dict[str, int]]

TWO = """
from pytest_areal_eval import evaluation

def rows(count):
    return [{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(count)]

@evaluation(rows(6), workflow="support.ask.Ask", gates=["reward >= 0.5"])
def test_gsm(rollout):
    pass

def test_plain():
    pass

@evaluation(rows(3), workflow="support.ask.Ask")
def test_strict(rollout):
    assert rollout.reward == 1.0
"""
OUTCOMES = {"passed": 4 + 1 + 2 + 1, "missed": 2, "failed": 1}


def test_rerunfailures_makes_the_rollout_anew(suite: Suite, engine_counts: Counts) -> None:
    pytest.importorskip("pytest_rerunfailures")
    rule = "return 'wrong' if number < 3 else 'a' + question[1:]"
    made = suite(source=TWO, rule=rule, plugins=["rerunfailures"])
    result = made.runpytest("--reruns=1", "-k", "test_strict")
    assert result.parseoutcomes() == {"passed": 3, "rerun": 3, "deselected": 7}
    assert engine_counts()["requests"] == 6
    result.stdout.fnmatch_lines(["test_strict *1.0000*"])


@pytest.mark.parametrize(("order", "word"), [("completion", "failed"), ("collection", "errors")])
def test_timeout_ends_a_hanging_rollout(suite: Suite, order: str, word: str) -> None:
    """B3: between protocols nothing is armed, so the episode itself is bounded by the plugin's limit."""
    pytest.importorskip("pytest_timeout")
    slow = "lambda question: 60.0 if question == 'q2' else 0.0"
    made = suite(rows=3, latency=slow, plugins=["timeout"])
    result = made.runpytest("--timeout=0.5", f"--areal-order={order}")
    assert result.parseoutcomes() == {"passed": 1, "missed": 1, word: 1}
    source = "import pytest\n" + TWO.replace("@evaluation(rows(3)", "@pytest.mark.timeout(0.5)\n@evaluation(rows(3)")
    made = suite(source=source, latency=slow, plugins=["timeout"])
    result = made.runpytest("-k", "test_strict and g2", f"--areal-order={order}")
    assert result.parseoutcomes() == {word: 1, "deselected": 9}


def test_randomly_shuffles_and_every_item_is_reported_once(suite: Suite, engine_counts: Counts) -> None:
    """B5.4: shuffled evaluations are brought together again."""
    pytest.importorskip("pytest_randomly")
    made = suite(source=TWO, plugins=["randomly"])
    state = random.getstate()
    first = made.runpytest("--randomly-seed=3", "-v")
    random.setstate(state)
    assert first.parseoutcomes() == OUTCOMES
    assert engine_counts()["requests"] == 9
    names = [
        re.split(r"[ \[]", line.split("::")[1])[0] for line in first.outlines if "%]" in line and "gate" not in line
    ]
    blocks = [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]
    assert sorted(blocks) == ["test_gsm", "test_plain", "test_strict"]


def test_html_shows_every_item_and_gate(suite: Suite) -> None:
    pytest.importorskip("pytest_html")
    made = suite(source=TWO, plugins=["html", "html_fixtures", "metadata"])
    assert made.runpytest("--html=out.html", "--self-contained-html").parseoutcomes() == OUTCOMES
    text = (made.path / "out.html").read_text()
    assert "test_gsm[g5]" in text
    assert "gate[reward" in text


def test_split_leaves_the_gate_to_the_whole(suite: Suite) -> None:
    pytest.importorskip("pytest_split")
    made = suite(source=TWO, plugins=["pytest-split"])
    total: dict[str, int] = {}
    for group in (1, 2):
        result = made.runpytest("--splits=2", f"--group={group}", "-rs")
        for word, number in result.parseoutcomes().items():
            total[word] = total.get(word, 0) + number
        result.stdout.fnmatch_lines(["*of 6 items were selected*"])
    assert {word: total[word] for word in ("passed", "missed", "failed")} == {"passed": 7, "missed": 2, "failed": 1}


def test_asyncio_auto_mode_leaves_evaluations_to_us(suite: Suite) -> None:
    pytest.importorskip("pytest_asyncio")
    source = (
        TWO
        + """
import asyncio

@evaluation(rows(3))
async def test_own(item, engine):
    reply = await engine.chat([{"role": "user", "content": item["question"]}])
    return float(reply.text == item["answer"])

async def test_async_plain():
    await asyncio.sleep(0)
"""
    )
    ini = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function"
    result = suite(source=source, plugins=["asyncio"], ini=ini).runpytest()
    assert result.parseoutcomes() == {"passed": 8 + 2 + 1, "missed": 3, "failed": 1}


def test_cov_measures_the_tests(suite: Suite) -> None:
    pytest.importorskip("pytest_cov")
    made = suite(source=TWO, plugins=["cov"])
    result = made.runpytest_subprocess("--cov=test_evals", "--cov-report=term", "-p", "no:xdist")
    assert result.parseoutcomes() == OUTCOMES
    result.stdout.fnmatch_lines(["test_evals.py *%"])


def test_hypothesis_tests_run_beside_evaluations(suite: Suite) -> None:
    pytest.importorskip("hypothesis")
    source = (
        TWO
        + """
from hypothesis import given, settings, strategies

@settings(max_examples=3, database=None)
@given(strategies.integers())
def test_property(n):
    assert n == n
"""
    )
    result = suite(source=source, plugins=["hypothesispytest"]).runpytest()
    assert result.parseoutcomes() == OUTCOMES | {"passed": 9}


def test_a_plugin_that_reads_test_functions_finds_what_it_expects(suite: Suite) -> None:
    made = suite(source=TWO)
    made.makepyfile(
        reader_plugin="""
def pytest_collection_modifyitems(items):
    for item in items:
        assert item.function and item.module and item.obj and item.fixturenames is not None
        assert item.location[0] == "test_evals.py"
        assert item.reportinfo()[2].startswith("test_")
"""
    )
    made.syspathinsert()
    assert made.runpytest("-p", "reader_plugin").parseoutcomes() == OUTCOMES


def test_a_plugin_that_would_run_every_item_again_is_refused(suite: Suite) -> None:
    """C7: it flips collectonly and runs all items itself, so each would be run twice."""
    made = suite(source=TWO)
    conftest = made.path / "conftest.py"
    conftest.write_text(conftest.read_text() + REGISTERED)
    result = made.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: asyncio-cooperative *", "*-p no:asyncio-cooperative*"])
    plain = suite(source="def test_plain(): pass")
    assert plain.runpytest("-p", "no:areal_eval").ret == pytest.ExitCode.OK


REGISTERED = """
def pytest_configure(config):
    config.pluginmanager.register(object(), "asyncio-cooperative")
"""
