"""A run in other tools' formats: what is written, what reads it, and that foreign text stays text."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.runs import episode, transcript, write_run

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.cli import main
from pytest_areal_eval.report.export.inspect_log import write_inspect_logs
from pytest_areal_eval.report.export.table import write_csv
from pytest_areal_eval.report.saved import read_run

INSPECT = Path(__file__).parents[2] / ".venv-inspect/bin/python"
READ_WITH_INSPECT = """
import json, sys
from inspect_ai.analysis import samples_df
from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries
(found,) = list_eval_logs(sys.argv[1])
log = read_eval_log(found)
sample = read_eval_log_sample(found, "b", 2)
df = samples_df(sys.argv[1])
print(json.dumps({
    "task": found.task, "status": log.status, "samples": len(log.samples),
    "mean": log.results.scores[0].metrics["mean"].value,
    "epochs": log.eval.config.epochs, "stop": sample.output.stop_reason, "completion": sample.output.completion,
    "answer": sample.scores["reward"].answer, "summaries": len(read_eval_log_sample_summaries(found)),
    "rewards": sorted(df["score_reward"].astype(float)), "level": sorted(set(df["metadata_level"].astype(int))),
    "errors": int((df["error"].fillna("") != "").sum()),
}))
"""


def inspect_says(script: str, logs: Path) -> Any:
    """What a script prints in the environment that has Inspect."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(INSPECT), "-c", script, str(logs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean, cwd=logs.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two items of two episodes: one right, one truncated; one wrong, one error."""
    episodes = [
        episode("a", 0, 1.0, extracted="4", gold="4", metrics={"turns": 2.0}),
        episode("a", 1, 0.0, status=EpisodeStatus.TRUNCATED, stop_reason="length", gold="4", reasoning="hm"),
        episode("b", 0, None, status=EpisodeStatus.WORKFLOW_ERROR, error="boom", completion=""),
        episode("b", 1, 0.0, completion="=SUM(A1)\n|x| <b>", extracted="-5", gold="5"),
    ]
    info = {
        "models": {"models/tiny": {"fingerprint": {"digest": "f00"}}},
        "gates": [
            {"evaluation": "gsm", "gate": "reward >= 1", "outcome": "fail", "message": "reward 0.2500 < 1 @team"}
        ],
    }
    return write_run(tmp_path / "run", {"gsm": episodes}, columns={"a": {"level": 1}, "b": {"level": 2}}, info=info)


def test_an_inspect_log_has_every_member_that_its_readers_look_for(folder: Path, tmp_path: Path) -> None:
    (path,) = write_inspect_logs(read_run(folder), tmp_path / "logs")
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [
            "_journal/start.json",
            *(f"samples/{i}_epoch_{k}.json" for i in "ab" for k in (1, 2)),
            "_journal/summaries/1.json",
            "summaries.json",
            "reductions.json",
            "header.json",
        ]
        header = json.loads(archive.read("header.json"))
        sample = json.loads(archive.read("samples/b_epoch_1.json"))
    assert header["version"] == 2
    assert header["results"]["scores"][0]["metrics"]["mean"]["value"] == 0.25
    assert (header["results"]["total_samples"], header["results"]["completed_samples"]) == (4, 3)
    assert sample["error"]["message"] == "boom"
    assert sample["scores"]["reward"]["value"] == 0.0


@pytest.mark.skipif(not INSPECT.exists(), reason="no Inspect here: make inspect")
def test_inspect_itself_reads_the_log(folder: Path, tmp_path: Path) -> None:
    write_inspect_logs(read_run(folder), tmp_path / "logs")
    assert inspect_says(READ_WITH_INSPECT, tmp_path / "logs") == {
        "task": "gsm",
        "status": "success",
        "samples": 4,
        "mean": 0.25,
        "epochs": 2,
        "stop": "stop",
        "completion": "=SUM(A1)\n|x| <b>",
        "answer": "-5",
        "summaries": 4,
        "rewards": [0.0, 0.0, 0.0, 1.0],
        "level": [1, 2],
        "errors": 1,
    }


READ_AGENT_WITH_INSPECT = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log_sample
(found,) = list_eval_logs(sys.argv[1])
sample = read_eval_log_sample(found, "a", 1)
(call,) = sample.messages[2].tool_calls
said = [[m.role, m.text] for m in sample.messages]
print(json.dumps([said, call.function, call.arguments, sample.messages[3].tool_call_id]))
"""


def test_an_agents_tool_calls_are_messages(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"gsm": [episode("a", reward=1.0, transcript=transcript("twelve"))]})
    (path,) = write_inspect_logs(read_run(run), tmp_path / "logs")
    with zipfile.ZipFile(path) as archive:
        messages = json.loads(archive.read("samples/a_epoch_1.json"))["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "assistant"]
    call = {"id": "c1", "function": "multiply", "arguments": {"a": 3, "b": 4}, "type": "function"}
    assert messages[2]["tool_calls"] == [call]
    assert (messages[3]["tool_call_id"], messages[3]["function"], messages[3]["content"]) == ("c1", "multiply", "12")
    if INSPECT.exists():
        assert inspect_says(READ_AGENT_WITH_INSPECT, tmp_path / "logs") == [
            [
                ["system", "Use the tool."],
                ["user", "twelve"],
                ["assistant", ""],
                ["tool", "12"],
                ["assistant", "twelve"],
            ],
            "multiply",
            {"a": 3, "b": 4},
            "c1",
        ]


def test_show_prints_an_agents_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, {"gsm": [episode("a", reward=1.0, transcript=transcript("\x1b[2Jtwelve"))]})
    assert main(["show", str(tmp_path), "--item", "a"]) == 0
    shown = capsys.readouterr().out
    assert '[assistant]\n  → multiply({"a": 3, "b": 4})\n[tool] 12\n[assistant] �[2Jtwelve\n[last answer]\n' in shown


def test_lm_eval_results_and_samples_hold_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--lm-eval", str(tmp_path / "lm")]) == 0
    (results,) = [json.loads(path.read_text()) for path in (tmp_path / "lm").glob("results_*.json")]
    (samples,) = [path.read_text().splitlines() for path in (tmp_path / "lm").glob("samples_gsm_*.jsonl")]
    rows = [json.loads(line) for line in samples]
    assert results["results"]["gsm"]["reward,none"] == sum(row["reward"] for row in rows) / len(rows) == 0.25
    assert results["n-samples"]["gsm"] == {"original": 2, "effective": 2}
    assert rows[0]["arguments"]["gen_args_0"]["arg_0"] == "question a"
    assert rows[0]["resps"] == [["answer a", "answer a"]]
    assert rows[1]["statuses"] == ["workflow_error", "scored"]


def test_csv_has_a_row_an_episode_and_no_formula(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--csv", str(tmp_path / "e.csv")]) == 0
    with (tmp_path / "e.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["item_id"], r["index"], r["reward"]) for r in rows] == [
        ("a", "0", "1.0"),
        ("a", "1", "0.0"),
        ("b", "0", ""),
        ("b", "1", "0.0"),
    ]
    assert rows[0]["metric.turns"] == "2.0"
    assert rows[3]["column.level"] == "2"
    assert rows[3]["completion"] == "'=SUM(A1)\n|x| <b>"
    assert rows[3]["extracted"] == "-5"


def test_a_cell_that_a_spreadsheet_would_compute_is_text(tmp_path: Path) -> None:
    computed = ["=1+1", "@SUM(A1)", "+1+1", "-2+3+cmd|' /C calc'!A0", "- 1+1", "-A1", "\t=1"]
    plain = ["-5", "+3.25", "-1,200", "-1e-5", "-5%", "-.5", "a=1"]
    texts = dict(enumerate([*computed, *plain]))
    run = write_run(tmp_path / "run", {"e": [episode(str(n), completion=text) for n, text in texts.items()]})
    write_csv(read_run(run), tmp_path / "e.csv")
    with (tmp_path / "e.csv").open(newline="") as file:
        found = {int(row["item_id"]): row["completion"] for row in csv.DictReader(file)}
    assert found == {n: f"'{text}" if text in computed else text for n, text in texts.items()}


def test_parquet_is_typed(folder: Path, tmp_path: Path) -> None:
    pq: Any = pytest.importorskip("pyarrow.parquet")
    assert main(["report", str(folder), "--parquet", str(tmp_path / "e.parquet")]) == 0
    table = pq.read_table(tmp_path / "e.parquet")
    assert table.column("reward").to_pylist() == [1.0, 0.0, None, 0.0]
    assert table.column("output_tokens").to_pylist() == [10, 11, 10, 11]
    assert table.column("status").to_pylist()[2] == "workflow_error"


def test_markdown_shows_gates_and_missed_items_and_no_foreign_markup(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C45: when a gate fails, five failing rows are shown with what was extracted."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    assert main(["report", str(folder), "--github-summary", "--markdown=-"]) == 0
    text = capsys.readouterr().out.split("\n", 1)[1]
    assert "❌ **gsm** reward 0.2500 &lt; 1 @\u200bteam" in text
    assert "2 missed items of gsm" in text
    assert r"| b | 0.000 | workflow\_error | boom |  |" in text
    assert "<b>" not in text
    written = (tmp_path / "summary.md").read_text()
    assert written.startswith("before\n### models/tiny\n")
    assert not (folder / "report.html").exists()


def test_the_ci_summary_needs_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert main(["report", str(folder), "--github-summary"]) == 2
    assert "$GITHUB_STEP_SUMMARY is not set" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--html", "--csv", "--parquet", "--markdown", "--inspect", "--lm-eval"])
def test_a_place_that_cannot_be_written_is_one_message(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["report", str(folder), option, str(tmp_path / "file" / "x")]) == 2
    err = capsys.readouterr().err
    assert "cannot write" in err
    assert option in err
