"""``areal-eval compare``: what is better, what flipped, and what makes it no comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs import episode, write_run

from pytest_areal_eval.cli import main
from pytest_areal_eval.report.comparison import baselines, compare_runs
from pytest_areal_eval.report.saved import read_run
from pytest_areal_eval.stats import decide, parse_gate


def gsm(folder: Path, rewards: dict[str, list[float]], answer: str = "", **more: Any) -> Path:
    episodes = [
        episode(i, k, reward, extracted=f"{answer}{reward:g}", gold="1", metrics={"turns": 2.0 + reward})
        for i, group in rewards.items()
        for k, reward in enumerate(group)
    ]
    return write_run(folder, {"gsm": episodes}, **more)


def test_items_are_paired_and_flips_listed_with_both_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C48: three of the greedy rows flip; the report names them with both answers."""
    rewards = {f"i{n}": [1.0] for n in range(40)}
    before = gsm(tmp_path / "a", rewards, "old ")
    after = gsm(tmp_path / "b", rewards | {"i3": [0.0], "i4": [0.0], "i40": [1.0]}, "new ")
    assert main(["compare", str(before), str(after)]) == 0
    out = capsys.readouterr().out
    assert "gsm: 1.0000 → 0.9500 over 40 shared items" in out
    assert "0 items better, 2 worse" in out
    assert "i3    1 → 0   old 1   new 0  1" in out
    assert "1 item is in the second run alone" in out
    assert "no difference shown" in out


def test_a_difference_that_is_one_is_called_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = gsm(tmp_path / "a", {f"i{n}": [0.0, 1.0] for n in range(30)})
    after = gsm(tmp_path / "b", {f"i{n}": [1.0, float(n % 7 > 0)] for n in range(30)})
    assert main(["compare", str(before), str(after)]) == 0
    assert "better: 25 items better, 0 worse" in capsys.readouterr().out
    assert main(["compare", str(after), str(before), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["paired"]["worse"] == 25
    assert found["paired"]["p_value"] < 0.001


def test_a_grader_whose_code_changed_makes_it_no_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = gsm(tmp_path / "a", {"x": [1.0]}, identity={"reward_fn": "aaaa", "prompt": "p", "answer": None})
    after = gsm(tmp_path / "b", {"x": [0.0]}, identity={"reward_fn": "bbbb", "prompt": "q", "answer": None})
    assert main(["compare", str(before), str(after)]) == 1
    out = capsys.readouterr().out
    assert "- grading: its reward_fn changed" in out
    assert "prompt" not in out  # the prompts themselves are the same


def test_a_gate_that_cannot_be_decided_is_refused_before_anything_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = gsm(tmp_path / "a", {"x": [1.0]}), gsm(tmp_path / "b", {"x": [0.0]})
    assert main(["compare", str(before), str(after), "--gate", "rewrad >= baseline"]) == 2
    told = capsys.readouterr()
    assert "no metric 'rewrad'" in told.err
    assert not told.out


@pytest.mark.parametrize(
    ("described", "info", "text"),
    [
        (
            {"sampling": {"temperature": 0.7, "greedy": False, "max_new_tokens": 128}},
            {},
            "sampling: temperature is 0.0 and 0.7",
        ),
        ({"reward_fn": "other"}, {}, "grading: reward_fn is 'gsm8k_reward_fn' and 'other'"),
        ({"template": {"enable_thinking": True}}, {}, "template: enable_thinking is False and True"),
        ({"dataset": {"content_hash": "beef"}}, {}, "data: the datasets' contents differ (0123456789abcdef and beef)"),
        ({}, {"versions": {"math-verify": "0.9"}}, "grading: math-verify is None and '0.9'"),
    ],
)
def test_where_other_things_differ_it_is_no_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], described: dict[str, Any], info: dict[str, Any], text: str
) -> None:
    """C24: a score at another temperature is another measurement."""
    before = gsm(tmp_path / "a", {"x": [1.0], "y": [0.0]})
    after = gsm(tmp_path / "b", {"x": [1.0], "y": [1.0]}, info=info, **described)
    assert main(["compare", str(before), str(after)]) == 1
    out = capsys.readouterr().out
    assert "NOT A COMPARISON OF CHECKPOINTS" in out
    assert text in out


def test_changed_rows_and_prompts_are_counted(tmp_path: Path) -> None:
    rows = {"x": {"question": "a"}, "y": {"question": "b"}}
    before = gsm(tmp_path / "a", {"x": [1.0], "y": [0.0]}, columns=rows)
    after = write_run(
        tmp_path / "b",
        {"gsm": [episode("x", reward=1.0, prompt="few-shot: question x"), episode("y", reward=0.0)]},
        columns=rows | {"y": {"question": "c"}},
        dataset={"content_hash": "ffff"},
    )
    (comparison,) = compare_runs(read_run(before), read_run(after))
    assert comparison.differs == [
        "data: 1 of 2 shared items have other content: y",
        "prompts: 1 of 2 shared items were asked otherwise: x",
    ]


def test_an_appended_row_changes_no_shared_item(tmp_path: Path) -> None:
    rows = {"x": {"question": "a"}}
    before = gsm(tmp_path / "a", {"x": [1.0]}, columns=rows)
    more = rows | {"y": {"question": "b"}}
    after = gsm(tmp_path / "b", {"x": [1.0], "y": [1.0]}, columns=more, dataset={"content_hash": "ffff"})
    (comparison,) = compare_runs(read_run(before), read_run(after))
    assert comparison.differs == []
    assert comparison.only_after == ["y"]


def test_the_same_checkpoint_is_said_to_be_the_same(tmp_path: Path) -> None:
    info = {"models": {"m": {"fingerprint": {"digest": "f00"}}}}
    runs = [read_run(gsm(tmp_path / name, {"x": [1.0]}, info=info)) for name in "ab"]
    assert compare_runs(*runs)[0].remarks == ["the same checkpoint: this is the noise of running it again"]


def test_runs_that_share_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = gsm(tmp_path / "a", {"x": [1.0]}), gsm(tmp_path / "b", {"y": [1.0]})
    assert main(["compare", str(before), str(after)]) == 2
    assert "share no item" in capsys.readouterr().err


def test_gates_are_decided_on_the_paired_difference(tmp_path: Path) -> None:
    before = read_run(gsm(tmp_path / "a", {f"i{n}": [1.0] for n in range(50)}))
    after = read_run(gsm(tmp_path / "b", {f"i{n}": [float(n > 1)] for n in range(50)})).evaluations["gsm"].row
    reference = baselines(before)(after)
    assert baselines(before)(replace(after, name="other", evaluation="other", key="evals/test_other.py::other")) is None
    assert baselines(before)(replace(after, name="gsm[step-2]")) == reference  # the baseline had one checkpoint alone
    assert baselines(before)(replace(after, name="test_gsm::gsm", evaluation="test_gsm::gsm")) == reference
    verdict = decide(parse_gate("reward >= baseline - 0.02"), after.summary(), baseline=reference)
    assert verdict.message.startswith("reward - baseline -0.0400 < -0.02 (reward 0.9600, baseline a, n=50")
    turns = decide(parse_gate("turns >= baseline"), after.summary(), baseline=reference)
    assert turns.outcome == "fail"


@pytest.mark.parametrize(
    ("wrong", "gate", "policy", "status", "word"),
    [
        (0, "reward >= baseline", "point", 0, "PASS"),
        (3, "gsm:reward >= baseline - 0.01", "point", 1, "FAIL"),
        (3, "reward >= baseline - 0.01", "interval", 17, "INCONCLUSIVE"),
        (30, "reward >= baseline - 0.01", "interval", 1, "FAIL"),
        (3, "pass@1 >= 0.5", "point", 0, "PASS"),
    ],
)
def test_gates_decide_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: int, gate: str, policy: str, status: int, word: str
) -> None:
    before = gsm(tmp_path / "a", {f"i{n}": [1.0] for n in range(100)})
    after = gsm(tmp_path / "b", {f"i{n}": [float(n >= wrong)] for n in range(100)})
    found = main(["compare", str(before), str(after), f"--gate={gate}", f"--gate-policy={policy}"])
    assert found == status
    assert f"gate {word}" in capsys.readouterr().out


def test_a_gate_on_something_else_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C109: a typo in a gate's name must not switch the gate off."""
    run = str(gsm(tmp_path / "a", {"x": [1.0]}))
    assert main(["compare", run, run, "--gate=gms:reward >= baseline"]) == 2
    assert "no compared evaluation is named 'gms'" in capsys.readouterr().err
    assert main(["compare", run, run, "--gate=gsm:pass@3 >= 0.5"]) == 2


def test_two_models_of_one_session_are_compared_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = {
        "gsm[a]": [episode(f"i{n}", reward=float(n % 2)) for n in range(60)],
        "gsm[b]": [episode(f"i{n}", reward=float(n % 8 > 0)) for n in range(60)],
    }
    run = str(write_run(tmp_path, models))
    gate = "--gate=reward >= baseline + 0.1"
    assert main(["compare", run, run, "--evaluation=gsm[b]", "--against=gsm[a]", gate]) == 0
    out = capsys.readouterr().out
    assert "gsm[a] → gsm[b]: 0.5000 → 0.8667" in out
    assert "gate PASS  gsm[b]: reward - baseline +0.3667 >= +0.1" in out
    assert "the same checkpoint" not in out
    assert main(["compare", run, run, "--evaluation=gsm[c]"]) == 2
    assert "share no item of gsm[c] and gsm[c]" in capsys.readouterr().err
