"""Proposed thresholds: known answers, and by simulation how often an unchanged and a worse checkpoint fail them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.runs import episode, write_run

from pytest_areal_eval.cli import main
from pytest_areal_eval.stats.calibrate import propose


def draw(random: np.random.Generator, p: np.ndarray, runs: int, shake: float = 0.0) -> list[list[list[float]]]:
    """Rewards of items that are right with probability ``p``, which moves by ``shake`` (its sd) from run to run."""
    moved = [np.clip(p + random.normal(0.0, shake), 0.0, 1.0) if shake else p for _ in range(runs)]
    return [[[float(x)] for x in random.random(len(p)) < now] for now in moved]


def test_the_threshold_is_the_prediction_limit_of_one_more_run() -> None:
    """Two of 100 items change: variance (2 * 0.5 + 1) / 100^2 with k = 2, and 2.3263 * sqrt(1.5) of its root."""
    base = [[1.0]] * 80 + [[0.0]] * 18
    p = propose([[*base, [1.0], [0.0]], [*base, [0.0], [1.0]]])
    assert (p.mean, p.source, p.n) == (0.81, "items", 100)
    assert p.noise == pytest.approx(2**0.5 / 100)
    assert p.threshold == pytest.approx(0.81 - 2.3263 * 1.5**0.5 * p.noise, abs=1e-4)
    assert p.threshold <= 0.81 - 2.3263 * 1.5**0.5 * p.noise


def test_runs_that_are_all_the_same_leave_room_for_a_flip_or_two() -> None:
    p = propose([[[1.0]] * 180 + [[0.0]] * 20] * 3)
    assert 0.9 - 4 / 200 < p.threshold < 0.9 - 1 / 200


@pytest.mark.parametrize("runs", [[], [[[1.0]]], [[[1.0]], [[1.0], [0.0]]], [[], []]])
def test_it_takes_two_runs_of_the_same_items(runs: list[list[list[float]]]) -> None:
    with pytest.raises(ValueError, match="a calibration needs two runs"):
        propose(runs)


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("n", [198, 1319])
def test_unchanged_checkpoints_pass_and_the_stated_drop_is_found(k: int, n: int) -> None:
    """C42: sampled runs of one checkpoint; a tenth of the items change from run to run, most never do."""
    random = np.random.default_rng(n + k)
    p = np.where(random.random(n) < 0.25, random.random(n), 1.0)
    below, found, trials = 0, 0, 30_000 // n
    for _ in range(trials):
        proposal = propose(draw(random, p, k))
        truth = float(p.mean())
        noise = float(np.sqrt((p * (1 - p)).sum())) / n
        again = random.normal(truth, noise, 200)
        below += int((again < proposal.threshold).sum())
        found += int((again - proposal.mde < proposal.threshold).sum())
    assert below / (trials * 200) <= 0.015
    assert 0.65 <= found / (trials * 200) <= 0.95


def test_runs_that_are_shaken_as_a_whole_are_noticed() -> None:
    random = np.random.default_rng(3)
    p = np.full(1319, 0.8)
    proposals = [propose(draw(random, p, 5, shake=0.04)) for _ in range(20)]
    assert sum(proposal.source == "runs" for proposal in proposals) >= 15


def test_calibrate_prints_a_gate_and_keeps_where_it_is_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = {"models": {"m": {"fingerprint": {"digest": "f00"}}}, "command_line": ["pytest", "evals"]}
    folders = [
        write_run(
            tmp_path / f"run{r}",
            {"gsm": [episode(f"i{i}", reward=float(i % 5 > 0 or i == r)) for i in range(50)]},
            info=info,
        )
        for r in range(3)
    ]
    output = tmp_path / "thresholds.json"
    assert main(["calibrate", *map(str, folders), "-o", str(output)]) == 0
    out = capsys.readouterr().out
    kept = json.loads(output.read_text())
    assert f'gates=["{kept["gates"]["gsm"]}"]' in out
    assert [run["run"] for run in kept["runs"]] == ["run0", "run1", "run2"]
    assert kept["runs"][0]["models"]["m"]["fingerprint"]["digest"] == "f00"
    assert kept["evaluations"]["gsm"]["dataset"]["content_hash"] == "0123456789abcdef"


def test_calibrating_from_different_checkpoints_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [
        write_run(tmp_path / d, {"gsm": [episode("x")]}, info={"models": {"m": {"fingerprint": {"digest": d}}}})
        for d in "ab"
    ]
    assert main(["calibrate", *map(str, folders)]) == 2
    assert "the weights differ" in capsys.readouterr().err
    assert main(["calibrate", str(folders[0])]) == 2
    assert "one run tells nothing" in capsys.readouterr().err
    assert main(["calibrate", str(folders[0]), str(folders[0])]) == 2
    assert "a is given twice" in capsys.readouterr().err


def test_runs_that_are_too_far_apart_give_no_threshold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [
        write_run(tmp_path / name, {"gsm": [episode(f"i{i}", reward=float(i < right)) for i in range(50)]})
        for name, right in (("a", 50), ("b", 20))
    ]
    output = tmp_path / "thresholds.json"
    assert main(["calibrate", *map(str, folders), "-o", str(output)]) == 0
    told = capsys.readouterr().out
    assert "no threshold: 2 such runs would let every checkpoint pass" in told
    assert "gates=" not in told
    assert not json.loads(output.read_text())["gates"]


def test_a_share_of_false_alarms_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["calibrate", "a", "b", "--false-alarms=often"])
    assert "'often' is not a share between 0 and 0.5" in capsys.readouterr().err
