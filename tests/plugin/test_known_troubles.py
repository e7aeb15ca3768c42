"""Troubles that users of other harnesses reported, each through a whole session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Suite = Callable[..., pytest.Pytester]


def sampling(made: pytest.Pytester) -> dict[str, Any]:
    """The sampling of ``test_gsm`` that the run recorded."""
    (file,) = {path.resolve() for path in (made.path / "eval-results").glob("2*/run.json")}
    found: dict[str, Any] = json.loads(file.read_text())["evaluations"]["test_gsm"]["sampling"]
    return found


def test_the_token_limit_is_generous_shown_and_recorded(suite: Suite) -> None:
    """C8: no hidden small default; what holds stands in the header and in the run."""
    made = suite(rows=2)
    made.runpytest().stdout.fnmatch_lines(["*test_gsm: 2 of 2 items*at most 16384 new tokens*"])
    assert sampling(made)["max_new_tokens"] == 16384


def test_a_stop_string_is_one_string_and_not_its_characters(suite: Suite) -> None:
    """C65: ``stop="###"`` as characters would end every answer at once."""
    made = suite(rows=2, more=', stop="###"')
    made.runpytest()
    assert sampling(made)["stop"] == ["###"]


def test_all_of_the_budget_is_in_flight_although_pytest_reports_one_by_one(
    suite: Suite, engine_counts: Callable[[], dict[str, int]]
) -> None:
    """C85, C111: the peak is the budget exactly, and the wall time is not the sum."""
    result = suite(rows=120, rule="return 'a' + question[1:]", latency="0.1", concurrency=60).runpytest()
    assert result.parseoutcomes() == {"passed": 120}
    counts = engine_counts()
    assert counts["peak"] == 60
    assert counts["requests"] == 120
    assert result.duration < 120 * 0.1 / 2


def test_all_right_and_all_wrong_are_numbers_too(suite: Suite) -> None:
    """C11, C32: 0 is printed, stored and decided; where all are equal the error is 0 and the interval is not."""
    made = suite(rows=4, rule="return 'wrong'", more=', gates=["reward >= 0.1"]')
    result = made.runpytest()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_gsm * 0.0000 ± 0.0000 * 0.000–0.*", "gate FAIL *reward 0.0000 < 0.1*"])


def test_a_column_that_only_some_rows_have_is_no_silent_zero(suite: Suite) -> None:
    """C1, C106: the row without it is named before the run."""
    source = """
    from pytest_areal_eval import evaluation

    def grade(prompt, completions, prompt_ids, completion_ids, answer):
        return 1.0

    @evaluation([{"id": "a", "question": "q", "answer": "x"}, {"id": "b", "question": "q"}], reward_fn=grade)
    def test_gsm(rollout):
        pass
    """
    result = suite(source=source).runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*row 1 (id 'b'): there is no field 'answer'*fields are: id, question"])


def test_the_workers_of_xdist_find_the_suites_own_modules(suite: Suite) -> None:
    """C108: a reward and helpers in modules beside the test file import under ``-n``."""
    pytest.importorskip("xdist")
    source = """
    from beside import ROWS, Flow
    from pytest_areal_eval import evaluation

    @evaluation(ROWS, workflow="beside.Flow")
    def test_gsm(rollout):
        pass
    """
    made = suite(source=source, plugins=["xdist"])
    made.makepyfile(
        beside="""
        from support.ask import Ask as Flow
        ROWS = [{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(6)]
        """
    )
    assert made.runpytest("-n2").parseoutcomes() == {"passed": 4, "missed": 2}


def test_a_help_text_and_a_collection_load_nothing_heavy(tmp_path: Path) -> None:
    """C102: `--help` and ``--collect-only`` are quick because they import no model library."""
    (tmp_path / "test_evals.py").write_text(
        "from pytest_areal_eval import evaluation\n"
        "@evaluation([{'question': 'q'}], reward_fn=lambda *a, **k: 1.0)\n"
        "def test_gsm(rollout):\n    pass\n"
    )
    program = "\n".join(
        [
            "import sys, pytest",
            "for args in (['--help'], ['--collect-only', '-q']):",
            "    pytest.main([*args, '-p', 'no:randomly', '-p', 'no:hypothesispytest', '-p', 'no:langsmith_plugin'])",
            "heavy = {'torch', 'transformers', 'aiohttp', 'datasets', 'math_verify', 'scipy'} & set(sys.modules)",
            "print('HEAVY', sorted(heavy))",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "--areal-model" in done.stdout
    assert "test_gsm[0000]" in done.stdout
    assert done.stdout.rstrip().endswith("HEAVY []"), done.stdout[-500:]


def test_recorded_completions_beyond_n_samples_are_not_dropped_without_a_word(suite: Suite) -> None:
    made = suite(rows=1)
    made.makeconftest("")
    rows = [f'{{"id": "g{n}", "completions": ["a{n}", "other"]}}' for n in range(1)]
    made.path.joinpath("answers.jsonl").write_text("\n".join(rows))
    result = made.runpytest("--replay=answers.jsonl")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_gsm: 1 recorded completions were not scored*"])
