"""Every command of ``areal-eval`` on a run that was copied here, and on folders that are no run or are damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.runs import episode, write_run

from pytest_areal_eval.cli import main

READERS = (
    ("show", "{run}"),
    ("show", "{run}", "--missed"),
    ("report", "{run}", "--html", "{out}/r.html", "--csv", "{out}/e.csv", "--markdown", "{out}/s.md"),
    ("compare", "{good}", "{run}"),
    ("calibrate", "{good}", "{run}", "-o", "{out}/thresholds.json"),
)


def good(folder: Path, first: int = 0) -> Path:
    """A run of four items."""
    episodes = [episode(f"i{n}", reward=float(n % 2)) for n in range(first, first + 4)]
    return write_run(folder, {"gsm": episodes}, columns={e.item_id: {"level": 1} for e in episodes})


def commands(tmp_path: Path, run: Path) -> list[list[str]]:
    """What is typed, by command."""
    names = {"run": run, "good": good(tmp_path / "good"), "out": tmp_path}
    shards = ["merge", str(good(tmp_path / "other", 4)), str(run), "-o", str(tmp_path / "merged")]
    return [shards, *([word.format(**names) for word in command] for command in READERS)]


def test_every_command_reads_a_run_that_was_copied_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = good(tmp_path / "cluster/eval-results/monday")
    copied = Path(shutil.move(made, tmp_path / "here"))
    for command in commands(tmp_path, copied):
        assert main(command) == 0, (command, capsys.readouterr().err)
    assert {p.name for p in tmp_path.iterdir()} >= {"r.html", "e.csv", "s.md", "merged", "thresholds.json"}
    assert main(["runs", "--results-dir", str(tmp_path)]) == 0
    assert "here" in capsys.readouterr().out


def edit(**changes: Any) -> Callable[[Path], None]:
    """Damage ``run.json``."""

    def damage(run: Path) -> None:
        info = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(info | changes))

    return damage


def describe(**changes: Any) -> Callable[[Path], None]:
    return edit(evaluations={"gsm": {"node": "f.py::gsm", "n_selected": 4, "n_total": 4} | changes})


def journal(change: Callable[[str], str]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = run / "episodes.jsonl"
        path.write_text(change(path.read_text()))

    return damage


def half(run: Path) -> None:
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text[: len(text) // 2])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "there is no run"),
        (lambda run: (run / "run.json").unlink(), "there is no run"),
        (lambda run: (run / "episodes.jsonl").unlink(), "no item with all of its episodes"),
        (half, "run.json is damaged: Expecting value"),
        (lambda run: (run / "run.json").write_text("[]"), "run.json is damaged: it holds no JSON object"),
        (edit(schema=99), "run.json was written in schema 99; this version reads up to 1\npip install --upgrade"),
        (edit(evaluations=[1]), "run.json is damaged: evaluations is no object"),
        (edit(models={"m": "x"}), "run.json is damaged: models.m is no object"),
        (edit(gates=[{"gate": "reward > 0"}]), "gates[0] lacks one of evaluation, gate, outcome, message"),
        (describe(n_samples="1"), "evaluations.gsm.n_samples is no number"),
        (describe(gates=["fast"]), "run.json is damaged: gsm: gate 'fast': expected one of"),
        (describe(summary={"n_items": 4, "n_samples": 1, "headline": 0.5}), "summary.headline is no estimate"),
        (journal(lambda text: text.replace('{"v":1', '{"v":99')), "was written in schema 99"),
        (journal(lambda text: text.replace('"reward":1.0', '"reward":null')), "the journal contradicts itself"),
        (journal(lambda text: "\n".join(line[:50] for line in text.splitlines())), "no item with all of its episodes"),
    ],
)
def test_what_cannot_be_read_is_one_message_of_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], said: str
) -> None:
    run = good(tmp_path / "results/bad")
    damage(run)
    for command in commands(tmp_path, run):
        assert main(command) == 2, command
        assert said in capsys.readouterr().err, command
    good(tmp_path / "results/fine")
    assert main(["runs", "--results-dir", str(tmp_path / "results")]) == 0
    assert "fine" in capsys.readouterr().out


def test_an_older_run_that_says_less_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = good(tmp_path / "old")
    (run / "run.json").write_text("{}")
    (run / "items.jsonl").write_bytes(b'{"v":1}\n\xff\xff\n[]\n')
    assert main(["show", str(run)]) == 0
    assert "0.5000" in capsys.readouterr().out
    assert main(["calibrate", str(good(tmp_path / "new")), str(run)]) == 2
    assert "are no runs of the same thing" in capsys.readouterr().err
