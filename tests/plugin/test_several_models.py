"""Several checkpoints, and evaluations of one name: what is told apart, and how it is shown together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.models import expand, short_names, step_of

Suite = Callable[..., pytest.Pytester]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-100", 100),
        ("checkpoint-200", 200),
        ("globalstep99", 99),
        ("epoch0epochstep9globalstep19", 19),
        ("global_step_40", 40),
        ("iter_0000100", 100),
        ("a-epoch3", 3),
        ("500", 500),
        ("Qwen2.5-7B", None),
        ("timestep5", None),
        ("tiny-math", None),
    ],
)
def test_a_name_tells_its_training_step(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_a_pattern_is_the_folders_that_match_it_by_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("step-100", "step-20", "step-3"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run/step-log").touch()
    (tmp_path / "run/step-0-newest").symlink_to("step-100")
    assert expand(["base", "run/step-*"]) == ["base", "run/step-3", "run/step-20", "run/step-100"]
    with pytest.raises(ConfigError, match=r"--model=run/nothing\*: no folder matches"):
        expand(["run/nothing*"])


def test_a_folder_whose_name_is_a_pattern_is_itself(tmp_path: Path) -> None:
    (tmp_path / "ckpt[1]").mkdir()
    assert expand([str(tmp_path / "ckpt[1]")]) == [str(tmp_path / "ckpt[1]")]


def test_short_names_are_as_short_as_they_can_be_and_distinct() -> None:
    assert short_names(["a/step-1", "a/step-2"]) == ["step-1", "step-2"]
    assert short_names(["a/step-1", "b/step-1"]) == ["a-step-1", "b-step-1"]
    assert short_names(["a/größe[1]", "a/größe[2]"]) == ["gr--e-1-", "gr--e-2-"]  # they are a part of tests' ids
    assert short_names(["ä", "ö"]) == ["0--", "1--"]


def test_a_pattern_that_matches_nothing_is_a_usage_error(suite: Suite) -> None:
    result = suite(rows=2).runpytest_subprocess("--model=ckpt/step-*")
    refused(result, pytest.ExitCode.USAGE_ERROR, "*--model=ckpt/step-?: no folder matches")


ONE_NAME = """
from pytest_areal_eval import evaluation

@evaluation([{{"id": f"g{{n}}", "question": f"q{{n}}", "answer": f"a{{n}}"}} for n in range({rows})],
            workflow="support.ask.Ask")
def test_gsm(rollout):
    pass
"""


def described(made: pytest.Pytester) -> dict[str, Any]:
    """The evaluations of the only run."""
    (file,) = (made.path / "eval-results").glob("2*/run.json")
    found: dict[str, Any] = json.loads(file.read_text())["evaluations"]
    return found


def test_evaluations_of_one_name_are_told_apart_by_their_files(suite: Suite, journal_rows: Any) -> None:
    """Two of one name in one journal would overwrite each other's episodes."""
    made = suite(source=ONE_NAME.format(rows=3))
    made.makepyfile(test_more=ONE_NAME.format(rows=4))
    result = made.runpytest("--gate=test_gsm:reward >= 0.5", "--gate=test_more::test_gsm:reward >= 0.9")
    result.stdout.fnmatch_lines_random(
        [
            "test_evals::test_gsm *0.6667*",
            "test_more::test_gsm *0.7500*",
            "gate FAIL  test_more::test_gsm: *0.7500 < 0.9*",
        ]
    )
    found = described(made)
    assert {name: e["summary"]["n_items"] for name, e in found.items()} == {
        "test_evals::test_gsm": 3,
        "test_more::test_gsm": 4,
    }
    assert len({(row["evaluation"], row["item_id"]) for row in journal_rows()}) == 7
    assert made.runpytest("--resume").parseoutcomes() == {"passed": 5, "missed": 2}
    made.runpytest("-k", "test_more", "--results-dir=other")
    (file,) = (made.path / "other").glob("2*/run.json")
    assert list(json.loads(file.read_text())["evaluations"]) == ["test_more::test_gsm"]  # as without -k
