"""What pytest says of an evaluated item: passed, missed, failed; and what the exit status and the cache make of it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

Suite = Callable[..., pytest.Pytester]


def test_items_are_tests_and_misses_are_no_failures(suite: Suite) -> None:
    result = suite(rows=6).runpytest()
    assert result.parseoutcomes() == {"passed": 4, "missed": 2}
    assert result.ret == pytest.ExitCode.OK


def test_verbose_output_names_each_item_and_marks_a_miss(suite: Suite) -> None:
    result = suite(rows=3).runpytest("-v")
    result.stdout.fnmatch_lines(["*test_evals.py::test_gsm?g0? PASSED*", "*test_evals.py::test_gsm?g1? MISSED*"])


def test_a_body_with_assertions_is_strict(suite: Suite) -> None:
    source = """
    from pytest_areal_eval import evaluation

    @evaluation([{"id": "x", "question": "q0", "answer": "a0"}, {"id": "y", "question": "q1", "answer": "a1"}],
                reward_fn=lambda prompt, completions, *ids, answer, **kw: float(completions == answer))
    def test_strict(rollout):
        assert rollout.reward == 1.0, rollout.text
    """
    result = suite(source=source).runpytest()
    assert result.parseoutcomes() == {"passed": 1, "failed": 1}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*AssertionError: wrong*"])


def test_an_async_test_is_its_own_workflow(suite: Suite) -> None:
    source = """
    from pytest_areal_eval import evaluation

    @evaluation([{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(6)])
    async def test_own(item, engine):
        if item["id"] == "g5":
            raise LookupError("no such family")  # an error, and no assertion: the other items are scored
        reply = await engine.chat([{"role": "user", "content": item["question"]}])
        return 2 if item["id"] == "g0" else float(reply.text == item["answer"])
    """
    result = suite(source=source).runpytest()
    assert result.parseoutcomes() == {"passed": 2, "missed": 2, "failed": 2}
    result.stdout.fnmatch_lines_random(
        ["grader_error: item 'g0', episode 0: the reward is 2, outside 0 to 1", "workflow_error: LookupError: no such*"]
    )


def test_an_async_test_with_assertions_fails_where_they_fail(suite: Suite) -> None:
    source = """
    from pytest_areal_eval import evaluation

    @evaluation([{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(3)])
    async def test_own(item, engine):
        reply = await engine.chat([{"role": "user", "content": item["question"]}])
        if item["id"] == "g2":
            pytest.fail("as an assertion does")
        assert reply.text == item["answer"]
    """
    result = suite(source=f"import pytest\n{textwrap.dedent(source)}").runpytest("-rf")
    assert result.parseoutcomes() == {"passed": 1, "failed": 2}
    result.stdout.fnmatch_lines(["*assert*'wrong' == 'a1'*"])
    result.stdout.fnmatch_lines(["Failed: as an assertion does", "  File *in test_own"])
    result.stdout.fnmatch_lines_random(["FAILED *g1? - *AssertionError: *", "FAILED *g2? - *as an assertion*"])
    result.stdout.no_fnmatch_line("*errors*")


def test_a_gate_that_holds_is_one_more_test(suite: Suite) -> None:
    result = suite(rows=6, more=', gates=["reward >= 0.6"]').runpytest("-v")
    assert result.parseoutcomes() == {"passed": 5, "missed": 2}
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*test_gsm::gate?reward >= 0.6? PASSED*100%*", "gate PASS *reward 0.6667 >= 0.6*"])


def test_a_gate_that_fails_fails_the_session(suite: Suite) -> None:
    result = suite(rows=6, more=', gates=["reward >= 0.7"]').runpytest()
    assert result.parseoutcomes() == {"passed": 4, "missed": 2, "failed": 1}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*reward 0.6667 < 0.7*"])


@pytest.mark.parametrize("selection", [("-k", "g0 or g1"), ("test_evals.py::test_gsm[g3]",)])
def test_a_gate_over_a_chosen_part_is_skipped_with_the_counts(suite: Suite, selection: tuple[str, ...]) -> None:
    """C39: a threshold of the whole set says nothing about fifty chosen rows."""
    result = suite(rows=6, more=', gates=["reward >= 0.99"]').runpytest("-rs", *selection)
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["skipped"] == 1
    result.stdout.fnmatch_lines(["*of 6 items were selected*"])


def test_gate_partial_decides_on_the_part(suite: Suite) -> None:
    result = suite(rows=6, more=', gates=["reward >= 0.99"]').runpytest("-k", "g0 or g1", "--gate-partial")
    assert result.parseoutcomes() == {"passed": 1, "missed": 1, "failed": 1, "deselected": 4}


def test_a_limit_is_a_random_sample_and_gates_are_decided_on_it(suite: Suite) -> None:
    result = suite(rows=30, more=', gates=["reward >= 0.01"]').runpytest("--limit=9")
    assert sum(result.parseoutcomes().values()) == 10
    result.stdout.fnmatch_lines(["gate PASS *n=9*"])


def test_a_shard_skips_its_gates_and_the_shards_make_the_whole(suite: Suite, journal_rows: Any) -> None:
    made = suite(rows=10, more=', gates=["reward >= 0.01"]')
    seen = []
    for shard in ("1/3", "2/3", "3/3"):
        result = made.runpytest(f"--shard={shard}", "-rs")
        result.stdout.fnmatch_lines([f"*shard {shard}*of 10 items*"])
        seen += [row["item_id"] for row in journal_rows()]
    assert sorted(seen) == sorted(f"g{n}" for n in range(10))


def test_gates_can_be_added_on_the_command_line(suite: Suite) -> None:
    made = suite(rows=6)
    assert made.runpytest("--gate", "test_gsm:reward >= 0.9").ret == pytest.ExitCode.TESTS_FAILED
    assert made.runpytest("--gate", "reward >= 0.1").ret == pytest.ExitCode.OK


def test_a_gate_that_names_no_evaluation_is_an_error(suite: Suite) -> None:
    """C109: a typo in a gate's name must not switch the gate off."""
    result = suite(rows=2).runpytest("--gate", "test_gms:reward >= 0.9")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no selected evaluation is named 'test_gms'*", "*test_gsm*"])


def test_xfail_speaks_of_the_gate(suite: Suite) -> None:
    source = """
    import pytest
    from pytest_areal_eval import evaluation

    @pytest.mark.xfail(reason="known to be weak", strict=True)
    @evaluation([{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(6)], gates=["reward >= 0.9"],
                reward_fn=lambda prompt, completions, *ids, answer, **kw: float(completions == answer))
    def test_weak(rollout):
        pass
    """
    result = suite(source=source).runpytest()
    assert result.parseoutcomes() == {"passed": 4, "missed": 2, "xfailed": 1}
    assert result.ret == pytest.ExitCode.OK


def test_an_unexpected_pass_of_a_strict_mark_fails_and_one_items_word_is_not_the_gates(suite: Suite) -> None:
    """A gate was waved through where one item's body said ``pytest.xfail()``, and a strict mark was not kept."""
    source = """
    import pytest
    from pytest_areal_eval import evaluation

    ROWS = [{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(3)]
    right = lambda prompt, completions, *ids, answer, **kw: float(completions == answer)

    @pytest.mark.xfail(reason="mended", strict=True)
    @evaluation(ROWS, gates=["reward >= 0.1"], reward_fn=right)
    def test_mended(rollout):
        pass

    @evaluation(ROWS, gates=["reward >= 0.9"], reward_fn=right)
    def test_weak(rollout, item):
        if item["id"] == "g1":
            pytest.xfail("this one")
    """
    result = suite(source=source).runpytest("-rf")
    assert result.parseoutcomes() == {"passed": 4, "missed": 1, "xfailed": 1, "failed": 2}
    result.stdout.fnmatch_lines(
        ["*test_mended::gate* - *XPASS(strict)* mended", "*test_weak::gate* - test_weak: reward*"]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_workflow_that_raises_fails_its_item_and_counts_as_an_error(suite: Suite) -> None:
    """C1: requested = scored + errors; the error is no silent drop."""
    result = suite(rows=6, rule="n = int(question[1:]); return f'a{n}' if n != 2 else 1 / 0").runpytest()
    assert result.parseoutcomes() == {"passed": 5, "failed": 1}
    result.stdout.fnmatch_lines(
        ["*workflow_error*division by zero*", "*6 episodes = 5 scored + 0 grader faults + 1 errors*"]
    )


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "7.0", "'text'"])
def test_a_reward_that_is_no_number_in_range_names_the_item(suite: Suite, value: str) -> None:
    """C1: NaN and values out of range are errors that name the row."""
    source = f"""
    from pytest_areal_eval import evaluation

    def grade(prompt, completions, *ids, **columns):
        return {value} if completions == "a2" else 1.0

    @evaluation([{{"id": f"g{{n}}", "question": f"q{{n}}"}} for n in (0, 2, 3)], reward_fn=grade)
    def test_odd(rollout):
        pass
    """
    result = suite(source=source).runpytest()
    assert result.parseoutcomes() == {"passed": 2, "failed": 1}
    result.stdout.fnmatch_lines(["*grader_error*g2*"])


def test_lf_runs_what_was_missed_or_failed(suite: Suite) -> None:
    made = suite(rows=6, more=', gates=["reward >= 0.9"]')
    made.runpytest()
    again = made.runpytest("--lf")
    assert again.parseoutcomes() == {"missed": 2, "skipped": 1}


def test_junit_carries_scores_and_gates(suite: Suite) -> None:
    made = suite(rows=3, more=', gates=["reward >= 0.9"]')
    made.runpytest("--junitxml=out.xml")
    text = (made.path / "out.xml").read_text()
    assert 'name="areal_reward" value="1.0"' in text
    assert 'name="areal_status" value="scored"' in text
    assert "gate[reward &gt;= 0.9]" in text
    assert 'failures="1"' in text


def test_the_run_folder_holds_every_episode_and_the_numbers(suite: Suite, journal_rows: Any) -> None:
    made = suite(rows=6, more=', n_samples=2, gates=["reward >= 0.1"]')
    made.runpytest()
    rows = journal_rows()
    assert len(rows) == 12
    assert {(r["item_id"], r["index"]) for r in rows} == {(f"g{n}", i) for n in range(6) for i in range(2)}
    run = json.loads(next((made.path / "eval-results").glob("2*/run.json")).read_text())
    assert run["status"] == "finished"
    assert run["evaluations"]["test_gsm"]["summary"]["n_items"] == 6
    assert run["gates"][0]["outcome"] == "pass"


def test_an_inconclusive_gate_is_skipped_and_the_exit_status_is_17(suite: Suite) -> None:
    """C40: a threshold inside the interval is no verdict."""
    result = suite(rows=6, more=', gates=["reward >= 0.6"]').runpytest("--gate-policy=interval", "-rs")
    assert result.ret == 17
    result.stdout.fnmatch_lines(["gate INCONCLUSIVE *the 95 % interval is*"])


def test_a_gate_against_a_baseline_pairs_the_items_of_that_run(suite: Suite) -> None:
    made = suite(rows=6)
    made.runpytest()
    first = next((made.path / "eval-results").glob("2*"))
    gate = ("--gate", "reward >= baseline - 0.01", f"--baseline={first.name}")
    assert made.runpytest(*gate).ret == pytest.ExitCode.OK
    worse = suite(rows=6, rule="return 'wrong'").runpytest(*gate)
    assert worse.ret == pytest.ExitCode.TESTS_FAILED
    worse.stdout.fnmatch_lines(["gate FAIL *reward - baseline -0.6667 < -0.01*"])


def test_a_baseline_that_sampled_otherwise_is_refused_where_a_gate_counts_from_it(suite: Suite) -> None:
    made = suite(rows=2)
    made.runpytest()
    first = next((made.path / "eval-results").glob("2*"))
    hotter = ("--temperature=0.7", f"--baseline={first.name}")
    result = made.runpytest(*hotter, "--gate", "reward >= baseline")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*is no baseline for these gates:", "*sampling: temperature is 0.0 and 0.7"])
    made.runpytest(*hotter).stdout.fnmatch_lines(["baseline *no comparison with *: sampling: *"])
    same = made.runpytest(f"--baseline={first.name}")
    same.stdout.fnmatch_lines(["baseline * over 2 shared items: +0.0000, 95 % interval *, 0 better, 0 worse; flips: *"])


def test_a_baseline_whose_items_were_other_questions_is_refused_where_a_gate_counts_from_it(suite: Suite) -> None:
    made = suite(rows=2)
    made.runpytest()
    first = next((made.path / "eval-results").glob("2*"))
    file = made.path / "test_evals.py"
    file.write_text(file.read_text().replace('"answer": f"a{n}"', '"answer": f"other {n}"'))
    result = made.runpytest("--gate", "reward >= baseline", f"--baseline={first.name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_gsm: data: 2 items are of another content: g0, g1"])


def test_a_baseline_without_the_evaluation_is_refused_where_a_gate_counts_from_it(suite: Suite) -> None:
    made = suite(rows=2)
    made.runpytest()
    first = next((made.path / "eval-results").glob("2*"))
    described = json.loads((first / "run.json").read_text())
    described["evaluations"] = {}
    (first / "run.json").write_text(json.dumps(described))
    (first / "episodes.jsonl").write_text("")
    without = f"--baseline={first.name}"
    refused = made.runpytest("--gate", "reward >= baseline", without)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*test_gsm: it is not in that run"])
    made.runpytest(without).stdout.fnmatch_lines(["baseline test_gsm: no comparison with *: it is not in that run"])


def test_a_gate_that_counts_from_no_baseline_is_refused_before_anything_runs(suite: Suite) -> None:
    result = suite(rows=2).runpytest("--gate", "reward >= baseline - 0.01")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*there is no baseline", "Give the run to compare with: --baseline=RUN"])
    told = suite(rows=2, more=', gates=["reward >= baseline"]').runpytest()
    told.stdout.fnmatch_lines(["*gate 'reward >= baseline' will fail: give the run to compare with: --baseline=RUN"])


def test_an_unknown_baseline_is_refused_before_anything_runs(suite: Suite) -> None:
    result = suite(rows=2).runpytest("--gate", "reward >= baseline", "--baseline=yesterday")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*yesterday*"])
