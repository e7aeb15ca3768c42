"""A run read back says what pytest said, wherever its folder is; shards merge into the run that was never divided."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.runs import episode, write_run

from pytest_areal_eval.cli import main
from pytest_areal_eval.errors import UserError
from pytest_areal_eval.journal import Journal
from pytest_areal_eval.journal.items import read_items, write_items
from pytest_areal_eval.report.saved import find_run, list_runs, read_run

Suite = Callable[..., pytest.Pytester]

FLAKY = "n = int(question[1:]); return f'a{n}' if (n * number) % 3 else 'wrong'"
RAISES = "n = int(question[1:]); return f'a{n}' if n % 3 else 1 / 0"


def table_of(lines: list[str]) -> list[str]:
    """The summary's lines between its title and the run's folder."""
    start = next(i for i, line in enumerate(lines) if " areal-eval " in line)
    end = next(i for i, line in enumerate(lines) if line.startswith("run: "))
    return [line.rstrip() for line in lines[start + 1 : end]]


@pytest.mark.parametrize(("rule", "more"), [(FLAKY, ", n_samples=4"), (RAISES, ', gates=["reward >= 0.2"]')])
def test_show_prints_the_table_that_pytest_printed(
    suite: Suite, capsys: pytest.CaptureFixture[str], rule: str, more: str
) -> None:
    made = suite(rows=12, rule=rule, more=more)
    printed = table_of(made.runpytest().outlines)
    copied = made.path / "elsewhere"
    shutil.copytree(list_runs(made.path / "eval-results")[0], copied)
    capsys.readouterr()
    assert main(["show", str(copied)]) == 0
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()[1:] if line.strip()]
    assert shown.pop(0).startswith("  test_gsm: records (")
    assert shown == [line for line in printed if line]


def test_the_journal_alone_gives_the_summary_in_run_json(suite: Suite) -> None:
    """C3, C6: the rows on disk and the summary recompute to the same numbers."""
    made = suite(rows=9, rule=FLAKY, more=", n_samples=2")
    made.runpytest()
    run = read_run(find_run("latest", made.path / "eval-results"))
    mine = json.loads(json.dumps(run.evaluations["test_gsm"].row.summary().to_dict()))
    assert mine == run.info["evaluations"]["test_gsm"]["summary"]


def test_an_item_that_lacks_an_episode_is_owed_and_in_no_number(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    """C20, C29c: a killed run's last item is half there, and its last line is torn."""
    made = suite(rows=5, more=", n_samples=2")
    made.runpytest()
    folder = find_run("latest", made.path / "eval-results")
    journal = folder / "episodes.jsonl"
    journal.write_bytes(journal.read_bytes()[:-7])
    run = read_run(folder)
    assert len(run.evaluations["test_gsm"].row.results) == 4
    assert len(run.evaluations["test_gsm"].owed) == 1
    capsys.readouterr()
    main(["show", str(folder)])
    captured = capsys.readouterr()
    assert "1 item is owed, and in no number: some of 2 episodes are missing" in captured.out
    assert "the line has no end" in captured.err
    main(["report", str(folder), "--markdown", "-"])
    assert "1 item is owed, and in no number" in capsys.readouterr().out
    main(["report", str(folder)])
    assert "1 item is owed, and in no number" in (folder / "report.html").read_text()


def test_runs_lists_them_and_tells_a_run_from_one_that_was_killed(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    made = suite(rows=3)
    made.runpytest()
    results = made.path / "eval-results"
    run_json = list_runs(results)[0] / "run.json"
    run_json.write_text(json.dumps(json.loads(run_json.read_text()) | {"status": "started"}))
    capsys.readouterr()
    main(["runs", f"--results-dir={results}"])
    out = capsys.readouterr().out
    assert "ended early" in out
    assert "test_gsm" in out


def test_a_run_is_found_by_part_of_its_name_and_a_wrong_name_lists_those_there_are(tmp_path: Path) -> None:
    for name in ("2026-01-01T00-00-00_a_0001", "2026-01-01T00-00-00_b_0002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert find_run("0002", tmp_path).name.endswith("b_0002")
    with pytest.raises(UserError, match="several runs match '2026'"):
        find_run("2026", tmp_path)
    with pytest.raises(UserError, match="a_0001"):
        find_run("nope", tmp_path)


def test_show_prints_an_item_without_control_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from support.runs import episode, write_run

    folder = write_run(tmp_path, {"gsm": [episode("x", completion="\x1b[2Jcleared\x07", extracted="\x1b]0;t\x07")]})
    assert main(["show", str(folder), "--item=x"]) == 0
    out = capsys.readouterr().out
    assert "cleared" in out
    assert "\x1b" not in out


def test_a_gate_that_failed_shows_five_missed_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C45: a score that fell for a prompt's or a parser's fault is seen by what was extracted."""
    from support.runs import episode, write_run

    gates = [{"evaluation": "gsm", "gate": "reward >= 0.5", "outcome": "fail", "message": "reward 0.0000 < 0.5"}]
    episodes = [episode(f"i{n}", extracted=f"answer {n}", gold=f"gold {n}") for n in range(7)]
    folder = write_run(tmp_path, {"gsm": episodes}, info={"gates": gates})
    main(["show", str(folder)])
    out = capsys.readouterr().out
    assert "7 of 7 items are below the pass mark" in out
    assert "i4     0.000  scored  answer 4  gold 4" in out
    assert "i5" not in out
    assert "and 2 more: --missed=7" in out


def test_a_mistake_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nothing", f"--results-dir={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("areal-eval show: there is no run 'nothing'")
    run = write_run(tmp_path / "run", {"e": [episode("a")]})
    assert main(["merge", str(run), "-o", str(run / "run.json" / "below-a-file")]) == 2
    assert "below-a-file: Not a directory\nGive another folder" in capsys.readouterr().err


def test_items_keep_a_hash_and_short_columns(tmp_path: Path) -> None:
    record: dict[str, Any] = {"id": "a", "level": 3, "family": "ledger", "ok": True, "question": "x" * 81, "n": None}
    write_items(tmp_path, "gsm", [("a", record)])
    item = read_items(tmp_path)["gsm", "a"]
    assert item.columns == {"level": 3, "family": "ledger", "ok": True}
    assert len(item.hash) == 16


def test_a_question_is_no_label_where_it_happens_to_be_short(tmp_path: Path) -> None:
    write_items(tmp_path, "gsm", [("a", {"level": 1, "question": "Short?"}), ("b", {"level": 2, "question": "x" * 81})])
    assert [dict(item.columns) for item in read_items(tmp_path).values()] == [{"level": 1}, {"level": 2}]


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "latency_s"}


def run_shards(made: pytest.Pytester, *shards: str) -> list[str]:
    results = made.path / "eval-results"
    before = set(list_runs(results))
    for shard in shards:
        made.runpytest(*([f"--shard={shard}"] if shard else []))
    return [str(path) for path in list_runs(results) if path not in before]


def test_shards_merge_into_exactly_the_unsharded_summary(suite: Suite) -> None:
    made = suite(rows=11, more=', n_samples=2, gates=["reward >= 0.6"]')
    (whole,) = run_shards(made, "")
    parts = run_shards(made, "1/3", "2/3", "3/3")
    output = made.path / "merged"
    assert main(["merge", *parts, "-o", str(output)]) == 0
    merged, unsharded = json.loads((output / "run.json").read_text()), json.loads(Path(whole, "run.json").read_text())
    assert merged["gates"] == unsharded["gates"]
    mine, theirs = (run["evaluations"]["test_gsm"]["summary"] for run in (merged, unsharded))
    assert without_times(mine) == without_times(theirs)
    stats = [json.loads(Path(run, "stats.json").read_text()) for run in (output, whole)]
    assert [run.pop("timeperf/episode") > 0 for run in stats] == [True, True]
    assert stats[0] == stats[1]


def test_a_missing_shard_is_named_and_its_gates_are_skipped(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    """C9: three of four shards must not look like a run."""
    made = suite(rows=8, more=', gates=["reward >= 0.1"]')
    parts = run_shards(made, "1/4", "3/4", "4/4")
    capsys.readouterr()
    assert main(["merge", *parts, "-o", str(made.path / "merged")]) == 1
    out = capsys.readouterr().out
    assert "of the shards 2/4 is missing" in out
    assert "gate SKIP" in out


def test_runs_that_are_no_shards_of_one_run_do_not_merge(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    made = suite(rows=6)
    first, again = run_shards(made, "1/2", "1/2")
    assert main(["merge", first, again, "-o", str(made.path / "a")]) == 2
    assert "is in" in capsys.readouterr().err
    other = str(made.path / "other")
    shutil.copytree(again, other)
    path = Path(other, "run.json")
    info = json.loads(path.read_text())
    info["evaluations"]["test_gsm"]["sampling"]["temperature"] = 0.7
    path.write_text(json.dumps(info))
    assert main(["merge", first, other, "-o", str(made.path / "b")]) == 2
    assert "sampling.temperature is 0.0 and 0.7" in capsys.readouterr().err


def test_an_evaluation_that_some_shards_left_out_is_not_taken_for_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shard(number: int, *names: str, items: str = "ab", of: int = 2) -> str:
        evaluations = {name: [episode(f"{i}{number}", reward=1.0) for i in items] for name in names}
        info = {"settings": {"given": {"shard": [number, of]}}}
        folder = tmp_path / f"{number}-{'-'.join(names)}-{items}"
        return str(write_run(folder, evaluations, info=info, n_total=4, gates=["reward >= 0.5"]))

    def merge(*parts: str) -> tuple[int, str]:
        status = main(["merge", *parts, f"--results-dir={tmp_path / 'merged'}"])
        return status, "".join(capsys.readouterr())

    status, out = merge(shard(1, "gsm", "math"), shard(2, "gsm"))
    assert status == 1
    assert "gate PASS  gsm: reward" in out
    assert "gate SKIP  math: reward >= 0.5 skipped: of the shards 2/2 is missing" in out
    assert "not the whole run: math: of the shards 2/2 is missing" in out
    assert merge(shard(1, "gsm", "few", items="a"), shard(2, "gsm", items="a"))[0] == 0  # the second one has none
    whole = write_run(tmp_path / "whole", {"gsm": [episode("x"), episode("y")]}, n_total=4)
    status, out = merge(shard(1, "gsm"), str(whole))
    assert status == 2
    assert "these are no shards of one division: 1-gsm-ab (1/2), whole (whole)" in out


def test_every_run_that_a_journal_may_hold_is_read(tmp_path: Path) -> None:
    """A plain script's episodes have no evaluation and no description."""
    from support.runs import episode

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    with Journal.open(folder) as journal:
        journal.append(episode("x", reward=1.0))
    assert read_run(folder).evaluations[""].row.summary().reward == 1.0


def test_merging_decides_gates_that_count_from_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(name: str, items: str, right: str, **described: Any) -> str:
        episodes = [episode(i, reward=float(i in right)) for i in items]
        return str(write_run(tmp_path / name, {"gsm": episodes}, **described))

    gates = {"gates": ["reward >= baseline - 0.1"]}
    parts = [run("a", "ab", "ab", **gates), run("b", "cd", "d", **gates)]

    def merge(*more: str) -> tuple[int, str]:
        status = main(["merge", *parts, f"--results-dir={tmp_path}", *more])
        return status, capsys.readouterr().out

    base, other = run("base", "abcd", "abcd"), run("other", "xy", "x")
    cold = run("cold", "abcd", "abcd", sampling={"temperature": 0.5})
    status, out = merge("--baseline", base)
    assert status == 1
    assert "gate FAIL  gsm: reward - baseline -0.2500 < -0.1" in out
    assert merge("--baseline", run("even", "abcd", "abd"))[0] == 0
    assert "no baseline for gsm: sampling: " in merge("--baseline", cold)[1]
    assert "share no item" in merge("--baseline", other)[1]
    assert "there is no baseline. Give the run to compare with: --baseline=RUN" in merge()[1]
