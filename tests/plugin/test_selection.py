"""Which tests run: pytest's own selection keeps its meaning, and only what is selected is submitted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Suite = Callable[..., pytest.Pytester]
Counts = Callable[[], dict[str, int]]

MIXED = """
from pytest_areal_eval import evaluation

def rows(count, prefix):
    return [{"id": f"{prefix}{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(count)]

def test_plain_before():
    pass

@evaluation(rows(12, "g"), workflow="support.ask.Ask")
def test_gsm(rollout):
    pass

def test_plain_between():
    pass

@evaluation(rows(8, "m"), workflow="support.ask.Ask")
def test_math(rollout):
    assert rollout.reward == 1.0

def test_plain_after():
    pass
"""

ALL = {"passed": 3 + 8 + 5, "missed": 4, "failed": 3}


@pytest.mark.parametrize("order", ["completion", "collection"])
def test_a_mixed_suite_runs_whole(suite: Suite, engine_counts: Counts, order: str) -> None:
    result = suite(source=MIXED).runpytest(f"--areal-order={order}")
    assert result.parseoutcomes() == ALL
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert engine_counts()["requests"] == 20


@pytest.mark.parametrize("order", ["completion", "collection"])
def test_x_stops_at_the_first_failure_and_gives_the_rest_up(suite: Suite, engine_counts: Counts, order: str) -> None:
    latency = "lambda question: 0.0 if question == 'q1' else 60.0"
    source = """
    from pytest_areal_eval import evaluation

    @evaluation([{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in (1, 2, 3, 5, 6)],
                workflow="support.ask.Ask")
    def test_gsm(rollout):
        assert rollout.reward == 1.0

    def test_never_reached():
        pass
    """
    result = suite(source=source, latency=latency).runpytest("-x", f"--areal-order={order}")
    assert result.parseoutcomes() == {"failed": 1}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    assert engine_counts()["cancelled"] == 4


def test_misses_do_not_stop_a_run_that_stops_at_failures(suite: Suite) -> None:
    result = suite(rows=6).runpytest("-x")
    assert result.parseoutcomes() == {"passed": 4, "missed": 2}


def test_maxfail_counts_failures(suite: Suite) -> None:
    result = suite(source=MIXED).runpytest("--maxfail=2", "test_evals.py::test_math")
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines(["*stopping after 2 failures*"])


@pytest.mark.parametrize(
    ("arguments", "outcomes", "requests"),
    [
        (("-k", "test_gsm and (g0 or g1) and not (g10 or g11)"), {"passed": 1, "missed": 1}, 2),
        (("-m", "evaluation"), {"passed": 13, "missed": 4, "failed": 3}, 20),
        (("-m", "not evaluation"), {"passed": 3}, None),
        (("test_evals.py::test_gsm[g3]",), {"passed": 1}, 1),
        (("test_evals.py::test_math",), {"passed": 5, "failed": 3}, 8),
        (("test_evals.py::test_math[m2]", "test_evals.py::test_gsm[g1]"), {"passed": 1, "missed": 1}, 2),
        (("--deselect", "test_evals.py::test_gsm", "-k", "m0"), {"passed": 1}, 1),
    ],
    ids=["k", "m", "not-m", "item", "evaluation", "two-items", "deselect"],
)
def test_only_what_is_selected_is_submitted(
    suite: Suite,
    engine_counts: Counts,
    arguments: tuple[str, ...],
    outcomes: dict[str, int],
    requests: int | None,
) -> None:
    found = suite(source=MIXED).runpytest(*arguments).parseoutcomes()
    found.pop("deselected", None)
    assert found == outcomes
    assert engine_counts().get("requests") == requests


def test_collecting_starts_nothing_and_lists_ids_that_can_be_pasted(suite: Suite, engine_counts: Counts) -> None:
    made = suite(source=MIXED)
    result = made.runpytest("--collect-only", "-q")
    listed = [line for line in result.outlines if "::" in line]
    assert len(listed) == 23
    assert "test_evals.py::test_gsm[g11]" in listed
    assert made.runpytest("--co", "-q", "-k", "math").outlines[-1].startswith("8/23 tests collected")
    made.runpytest("--co").stdout.fnmatch_lines(["*<Function test_math?m7?>*"])
    assert engine_counts() == {}
    assert not (made.path / "eval-results").exists()


@pytest.mark.parametrize("option", ["--setup-plan", "--setup-only"])
def test_showing_setups_submits_nothing(suite: Suite, engine_counts: Counts, option: str) -> None:
    """B3: the fixtures are listed, no rollout is made."""
    source = MIXED.replace("def test_gsm(rollout)", "def test_gsm(rollout, tmp_path)")
    result = suite(source=source).runpytest(option, "-k", "g0 or between")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*SETUP    F rollout*", "*test_evals.py::test_gsm?g0? (fixtures used: *rollout*"])
    assert engine_counts().get("requests", 0) == 0
    assert not (suite().path / "eval-results").exists()


def test_setup_show_runs_and_shows_each_setup_once(suite: Suite, engine_counts: Counts) -> None:
    result = suite(source=MIXED).runpytest("--setup-show", "-k", "test_gsm")
    assert result.parseoutcomes() == {"passed": 8, "missed": 4, "deselected": 11}
    assert result.stdout.str().count("SETUP    S controller") == 1
    assert result.stdout.str().count("TEARDOWN S controller") == 1
    assert engine_counts()["requests"] == 12


@pytest.mark.parametrize("order", ["completion", "collection"])
def test_lf_runs_misses_and_failures_again(suite: Suite, engine_counts: Counts, order: str) -> None:
    made = suite(source=MIXED)
    made.runpytest(f"--areal-order={order}")
    engine_counts()
    assert made.runpytest("--lf", f"--areal-order={order}").parseoutcomes() == {"missed": 4, "failed": 3}
    assert engine_counts()["requests"] == 7


@pytest.mark.parametrize("order", ["completion", "collection"])
def test_ff_runs_misses_first_and_then_everything(suite: Suite, engine_counts: Counts, order: str) -> None:
    """B3: the order splits an evaluation in two, whose results must not be lost; B5.4."""
    made = suite(source=MIXED)
    made.runpytest()
    engine_counts()
    result = made.runpytest("--ff", "-v", f"--areal-order={order}")
    assert result.parseoutcomes() == ALL
    assert engine_counts()["requests"] == 20
    ran = [line.split()[0] for line in result.outlines if "%]" in line]
    assert {name.rpartition("[")[2] for name in ran[:7]} == {"g1]", "g4]", "g7]", "g10]", "m1]", "m4]", "m7]"}


def test_nf_and_a_repaired_rule_leave_nothing_for_lf(suite: Suite) -> None:
    made = suite(rows=6)
    made.runpytest("--nf")
    repaired = suite(rows=6, rule="return 'a' + question[1:]")
    assert repaired.runpytest("--lf").parseoutcomes() == {"passed": 2}
    repaired.runpytest("--lf", "--lfnf=none").stdout.fnmatch_lines(["*no previously failed tests*"])


def test_a_crossed_gate_leaves_no_node_that_lf_cannot_find(suite: Suite) -> None:
    made = suite(rows=3, rule="return 'a' + question[1:]", more=', gates=["reward < 0.5"]')
    assert made.runpytest().ret == pytest.ExitCode.TESTS_FAILED
    made.runpytest("--lf", "-q").stdout.fnmatch_lines(["*3 passed*"])


def test_stepwise_stops_at_a_failure_and_continues_there(suite: Suite) -> None:
    """B3: completion order would deselect what never ran; collection order is taken by itself."""
    made = suite(source=MIXED)
    first = made.runpytest("--sw", "-k", "test_math", "-v")
    assert first.parseoutcomes() == {"passed": 1, "failed": 1, "deselected": 15}
    second = made.runpytest("--sw", "--sw-skip", "-k", "test_math")
    assert second.parseoutcomes() == {"passed": 2, "failed": 2, "deselected": 16}


def test_ids_of_reported_tests_are_not_kept_in_the_cache(suite: Suite) -> None:
    """B5.9: cache/nodeids is read and written whole at every session and never pruned."""
    made = suite(source=f"{MIXED}\ndef test_gsm_by_hand():\n    pass\n")  # begins like an evaluation's name
    made.runpytest()
    kept = (made.path / ".pytest_cache/v/cache/nodeids").read_text()
    assert "test_plain_after" in kept
    assert "test_gsm_by_hand" in kept
    assert "test_gsm[" not in kept
