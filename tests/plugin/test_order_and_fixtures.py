"""Order of reports and life of fixtures: every scope exactly as often as documented, around concurrent rollouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Suite = Callable[..., pytest.Pytester]
Counts = Callable[[], dict[str, int]]

HEAD = """
import pathlib
import pytest
from pytest_areal_eval import evaluation

def log(text):
    with pathlib.Path("events.txt").open("a") as file:
        file.write(text + "\\n")

def rows(*numbers):
    return [{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in numbers]

def scoped(name, scope, autouse=False):
    @pytest.fixture(scope=scope, autouse=autouse, name=name)
    def made():
        log(f"+{name}")
        yield name
        log(f"-{name}")
    return made
"""

SLOW_FIRST = "lambda question: 0.3 - 0.1 * int(question[1:])"
"""q0 answers last, q2 first."""


def events(made: pytest.Pytester) -> list[str]:
    """What the suite logged, and forget it."""
    file = Path(made.path / "events.txt")
    lines = file.read_text().split()
    file.unlink()
    return lines


def test_items_are_reported_as_they_complete(suite: Suite) -> None:
    source = (
        HEAD
        + """
@evaluation(rows(0, 1, 2), workflow="support.ask.Ask", pass_mark=0)
def test_a(rollout):
    log(rollout.item_id)
"""
    )
    made = suite(source=source, latency=SLOW_FIRST)
    made.runpytest()
    assert events(made) == ["g2", "g1", "g0"]
    made.runpytest("--areal-order=collection")
    assert events(made) == ["g0", "g1", "g2"]


@pytest.mark.parametrize("order", ["completion", "collection"])
def test_fixtures_of_every_scope_are_made_as_often_as_documented(suite: Suite, order: str) -> None:
    """B3: session, module, class, autouse and function fixtures, each once for its scope and in order."""
    source = (
        HEAD
        + """
by_session, by_module = scoped("by_session", "session"), scoped("by_module", "module")
by_class, by_function = scoped("by_class", "class"), scoped("by_function", "function")
auto_module = scoped("auto_module", "module", True)
auto_function = scoped("auto_function", "function", True)

class TestMath:
    @evaluation(rows(0, 2), workflow="support.ask.Ask")
    def test_a(self, rollout, by_class, by_module, by_session, by_function):
        log("a")

    @evaluation(rows(0, 2), workflow="support.ask.Ask")
    def test_b(self, by_class, rollout):
        log("b")

def test_plain(by_session, by_module):
    log("plain")
"""
    )
    made = suite(source=source)
    result = made.runpytest(f"--areal-order={order}")
    assert result.parseoutcomes() == {"passed": 5}
    seen = events(made)
    counts = {name: seen.count(f"+{name}") for name in ("by_session", "by_module", "by_class", "auto_module")}
    assert counts == {"by_session": 1, "by_module": 1, "by_class": 1, "auto_module": 1}
    assert all(
        seen.count(f"+{name}") == seen.count(f"-{name}") for name in {event[1:] for event in seen if "_" in event}
    )
    assert seen.count("+by_function") == 2
    assert seen.index("-by_class") < seen.index("plain") < seen.index("-by_module")
    assert seen[-1] == "-by_session"
    per_test = [event for event in seen if event in ("a", "b", "plain", "+by_function", "-by_function")]
    assert per_test == ["+by_function", "a", "-by_function"] * 2 + ["b", "b", "plain"]


def test_tests_are_reordered_by_scope_as_always(suite: Suite) -> None:
    source = (
        HEAD
        + """
@pytest.fixture(scope="module", params=["x", "y"])
def side(request):
    log(f"+{request.param}")
    yield request.param
    log(f"-{request.param}")

@evaluation(rows(0, 2), workflow="support.ask.Ask")
def test_a(side, rollout):
    log("a" + side)

@evaluation(rows(0, 2), workflow="support.ask.Ask")
def test_b(side, rollout):
    log("b" + side)
"""
    )
    made = suite(source=source)
    assert made.runpytest().parseoutcomes() == {"passed": 8}
    assert events(made) == ["+x", "ax", "ax", "bx", "bx", "-x", "+y", "ay", "ay", "by", "by", "-y"]


def test_the_engine_never_drains_between_evaluations(suite: Suite, engine_counts: Counts) -> None:
    """Two evaluations that need nothing of their own are submitted together."""
    source = (
        HEAD
        + """
@evaluation(rows(0, 2, 3), workflow="support.ask.Ask")
def test_a(rollout):
    pass

def test_between():
    pass

@evaluation(rows(0, 2, 3), workflow="support.ask.Ask")
def test_b(rollout):
    pass
"""
    )
    assert suite(source=source, latency="0.3").runpytest().parseoutcomes() == {"passed": 7}
    assert engine_counts() == {"requests": 6, "peak": 6, "cancelled": 0}


def test_no_more_than_the_limit_are_in_flight(suite: Suite, engine_counts: Counts) -> None:
    made = suite(rows=12, latency="0.02", concurrency=4)
    made.runpytest()
    assert engine_counts() == {"requests": 12, "peak": 4, "cancelled": 0}


def test_a_wide_fixture_is_shared_by_the_episodes_of_an_async_evaluation(suite: Suite) -> None:
    source = (
        HEAD
        + """
by_module = scoped("by_module", "module")

@evaluation(rows(0, 2))
async def test_own(item, engine, by_module):
    log(f"{by_module}-used")
    return 1.0
"""
    )
    made = suite(source=source)
    assert made.runpytest().parseoutcomes() == {"passed": 2}
    assert sorted(events(made)) == ["+by_module", "-by_module", "by_module-used", "by_module-used"]


@pytest.mark.parametrize("order", ["completion", "collection"])
def test_a_function_scoped_fixture_in_an_async_evaluation_is_one_clear_error(suite: Suite, order: str) -> None:
    """B5.5: concurrent episodes cannot each have it; named once, not once an item."""
    source = (
        HEAD
        + """
@evaluation(rows(*range(20)))
async def test_own(item, engine, tmp_path):
    return 1.0
"""
    )
    result = suite(source=source).runpytest(f"--areal-order={order}")
    text = result.stdout.str() + result.stderr.str()
    assert "fixture 'tmp_path' is made anew for each test" in text
    assert "scope='module'" in text
    assert text.count("is made anew for each test") <= 3
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_function_scoped_autouse_fixture_wraps_the_pick_up_of_an_async_test(suite: Suite) -> None:
    source = (
        HEAD
        + """
auto = scoped("auto", "function", True)

@evaluation(rows(0, 2))
async def test_own(item, engine):
    return 1.0
"""
    )
    made = suite(source=source)
    assert made.runpytest().parseoutcomes() == {"passed": 2}
    assert events(made) == ["+auto", "-auto"] * 2


def test_a_fixture_that_fails_fails_each_of_its_tests_and_submits_nothing(suite: Suite, engine_counts: Counts) -> None:
    source = (
        HEAD
        + """
@pytest.fixture(scope="module")
def broken():
    raise RuntimeError("no data today")

@evaluation(rows(0, 2))
async def test_own(item, engine, broken):
    return 1.0

def test_plain():
    pass
"""
    )
    result = suite(source=source).runpytest()
    assert result.parseoutcomes() == {"errors": 2, "passed": 1}
    result.stdout.fnmatch_lines(["*RuntimeError: no data today"])
    assert engine_counts()["requests"] == 0


@pytest.mark.parametrize("alone", [True, False])
def test_a_test_that_forgot_its_mark_is_told_so(suite: Suite, alone: bool) -> None:
    beside = "" if alone else "@evaluation(rows(0))\nasync def test_own(item, engine):\n    return 1.0\n"
    made = suite(source=f"{HEAD}\n{beside}\ndef test_unmarked(rollout):\n    pass\n")
    if alone:
        made.makeconftest("")  # which leaves the plugin's own controller
    result = made.runpytest_inprocess("-k", "unmarked")
    assert result.parseoutcomes()["errors"] == 1
    why = "no test of this session is an evaluation" if alone else "this test is none"
    result.stdout.fnmatch_lines([f"{why}, and *'rollout' are fixtures of evaluations", "Mark the test: @evaluation(*"])
    assert "fixtures.py" not in result.stdout.str()


def test_a_fixture_can_use_the_rollout(suite: Suite) -> None:
    source = (
        HEAD
        + """
@pytest.fixture
def length(rollout):
    return len(rollout.text)

@evaluation(rows(0, 2), workflow="support.ask.Ask")
def test_length(rollout, length):
    assert length == 2
"""
    )
    assert suite(source=source).runpytest().parseoutcomes() == {"passed": 2}
