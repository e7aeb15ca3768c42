"""Several checkpoints side by side: on terminals of any width, in Markdown, and on the page."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path

import pytest
from support.runs import episode, write_run

from pytest_areal_eval.cli import main
from pytest_areal_eval.report.export.html.steps import models_html
from pytest_areal_eval.report.export.inspect_log import write_inspect_logs
from pytest_areal_eval.report.grid import grid_of
from pytest_areal_eval.report.saved import SavedRun, read_run
from pytest_areal_eval.report.table import grid_lines


def run_of(folder: Path, **models: int) -> SavedRun:
    """A run of two evaluations; of ten items, each checkpoint solves as many of the first as it says."""
    named = {name.replace("_", "-"): right for name, right in models.items()}
    write_run(
        folder,
        {
            f"{evaluation}[{model}]": [episode(f"i{n}", reward=float(n < right)) for n in range(10)]
            for evaluation, more in (("gsm", 0), ("math", -2))
            for model, right in ((model, right + more) for model, right in named.items())
        },
    )
    info = json.loads((folder / "run.json").read_text())
    for name, described in info["evaluations"].items():
        evaluation, _, model = name.rstrip("]").partition("[")
        described |= {"evaluation": evaluation, "model_name": model, "model": f"run/{model}"}
    (folder / "run.json").write_text(json.dumps(info))
    return read_run(folder)


def test_a_column_for_each_checkpoint_or_a_row_where_there_is_no_room(tmp_path: Path) -> None:
    rows = run_of(tmp_path, step_100=4, step_200=7).rows
    _, head, _, gsm, math = grid_lines(rows, None)
    assert head.split() == ["reward", "of", "step-100", "step-200"]
    assert gsm.split() == ["gsm", "0.4000", "±", "0.1633", "0.7000", "±", "0.1528"]
    assert math.split()[1] == "0.2000"
    _, head, _, first, second = grid_lines(rows, 40)
    assert head.split() == ["reward", "of", "gsm", "math"]
    assert (first.split()[0], second.split()[0]) == ("step-100", "step-200")
    assert grid_lines(rows[:1], None) == []


def test_markdown_has_the_same_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_of(tmp_path, step_100=4, step_200=7)
    assert main(["report", str(tmp_path), "--markdown", "-"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert r"| reward | step\-100 | step\-200 |" in shown
    assert "| gsm | 0.4000 ± 0.1633 | 0.7000 ± 0.1528 |" in shown


def test_the_page_draws_the_reward_against_the_step(tmp_path: Path) -> None:
    rows = run_of(tmp_path, base=1, step_300=7, step_100=4).rows
    grid = grid_of(rows)
    assert grid is not None
    assert [(step, e.value) for step, _, e in grid.by_step("gsm")] == [(100, 0.4), (300, 0.7)]  # base tells no step
    html = models_html(rows)
    assert html.count("<polyline") == 2
    assert html.count('class="dot"') == 4
    assert "<th>base</th><th>step-300</th><th>step-100</th>" in html


def test_names_without_steps_are_a_table_alone(tmp_path: Path) -> None:
    html = models_html(run_of(tmp_path, old=4, new=7).rows)
    assert "<th>old</th><th>new</th>" in html
    assert "<svg" not in html


def test_a_checkpoints_name_is_text_on_the_page(tmp_path: Path) -> None:
    html = models_html(run_of(tmp_path, **{"<script>step1": 4, 'step2">': 7}).rows)
    assert "<script>" not in html
    assert '">:' not in html


def test_an_evaluations_name_is_text_on_the_page(tmp_path: Path) -> None:
    """A parameter's id is whatever its author wrote."""
    rows = run_of(tmp_path, step_1=4, step_2=7).rows
    for row in rows:
        row.evaluation = f'{row.evaluation}["><script>x</script>]'
    html = models_html(rows)
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_each_checkpoint_has_an_inspect_log_of_the_same_task(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", step_100=4, step_200=7)
    headers = []
    for path in write_inspect_logs(run, tmp_path / "logs"):
        with zipfile.ZipFile(path) as archive:
            headers.append(json.loads(archive.read("header.json"))["eval"])
    assert len({header["task_id"] for header in headers}) == 4
    assert [(header["task"], header["model"]) for header in headers] == [
        ("gsm", "hf/step-100"),
        ("gsm", "hf/step-200"),
        ("math", "hf/step-100"),
        ("math", "hf/step-200"),
    ]


def test_a_table_of_episodes_names_each_ones_checkpoint(tmp_path: Path) -> None:
    run_of(tmp_path / "run", step_100=4, step_200=7)
    assert main(["report", str(tmp_path / "run"), "--csv", str(tmp_path / "e.csv")]) == 0
    with (tmp_path / "e.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:3] == ["evaluation", "model", "item_id"]
    assert {(row["evaluation"], row["model"]) for row in rows} >= {("gsm[step-200]", "run/step-200")}
