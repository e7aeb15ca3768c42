"""Rollouts in AReaL's layout, for tools that read its dumps."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_areal_eval.api import Episode, EpisodeStatus, Rollout
from pytest_areal_eval.config import load_config
from pytest_areal_eval.config.options import option_values
from pytest_areal_eval.errors import ConfigError, JournalError
from pytest_areal_eval.journal.dumps import ArealDump, dump_folder

AREALS = ["task_id", "sample_idx", "seqlen", "prompt_len", "head_version", "tail_version"]
AREALS += ["reward", "prompt", "completion"]


def rollout(item_id: str) -> Rollout:
    scored = Episode(
        item_id=item_id, status=EpisodeStatus.SCORED, reward=0.5, prompt="q\ud800", completion="é\n",
        input_tokens=3, output_tokens=4, evaluation="test_a", stop_reason="stop",
    )  # fmt: skip
    failed = Episode(item_id=item_id, index=1, status=EpisodeStatus.TIMEOUT)
    return Rollout(item={}, item_id=item_id, episodes=(scored, failed))


def test_a_line_has_areals_fields_and_leads_back_to_its_item(tmp_path: Path) -> None:
    path = ArealDump(tmp_path, "run-1").write(rollout("g7"))
    first, second = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [first[name] for name in AREALS] == [0, 0, 7, 3, 0, 0, 0.5, "q\ud800", "é\n"]
    assert [second[name] for name in AREALS] == [0, 1, 0, 0, 0, 0, None, "", ""]
    assert (first["item_id"], first["evaluation"], first["run"]) == ("g7", "test_a", "run-1")
    assert (first["status"], second["status"]) == ("scored", "timeout")


def test_what_an_earlier_run_or_another_worker_wrote_is_left_alone(tmp_path: Path) -> None:
    ArealDump(tmp_path).write(rollout("old"))
    one, other = ArealDump(tmp_path, "one"), ArealDump(tmp_path, "other")
    names = [dump.write(rollout("new")).name for dump in (one, other, one)]
    assert names == ["1.jsonl", "2.jsonl", "3.jsonl"]
    assert json.loads((tmp_path / "0.jsonl").read_text().splitlines()[0])["item_id"] == "old"


def test_a_folder_that_cannot_be_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"dump_to_file: cannot write .*file/x.*\n.*dump_to_file=false"):
        ArealDump(tmp_path / "file/x")


def test_the_folder_is_areals(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "experiment_name: e\ntrial_name: t\ncluster: {fileroot: /data/areal}\n"
        "rollout: {dump_to_file: true, fileroot: '${cluster.fileroot}'}\n"
    )
    folder = f"/data/areal/logs/{getpass.getuser()}/e/t/eval-rollout/0"
    assert option_values(load_config(config))["dump"].value == folder == str(dump_folder("/data/areal", "e", "t"))
    assert "dump" not in option_values(load_config(config, ["rollout.dump_to_file=false"]))
    with pytest.raises(ConfigError, match=r"c.yaml:4: rollout.dump_to_file: trial_name says not where\nSet trial_name"):
        option_values(load_config(config, ["~trial_name"]))


def test_a_session_dumps_where_its_configuration_says(suite: Callable[..., pytest.Pytester]) -> None:
    made = suite(rows=3, more=", n_samples=2", plugins=["xdist"])
    (made.path / "c.yaml").write_text("experiment_name: e\ntrial_name: t\ncluster: {fileroot: dumps}\nrollout: {}\n")
    wanted = ("--config=c.yaml", "--set=+rollout.dump_to_file=true", "--temperature=1")
    result = made.runpytest(*wanted)
    result.stdout.fnmatch_lines(["run: eval-results/*", "rollouts in AReaL's layout: dumps/logs/*/e/t/eval-rollout/0"])
    assert result.ret == made.runpytest(*wanted, "-n1").ret == 0
    files = sorted((made.path / "dumps/logs" / getpass.getuser() / "e/t/eval-rollout/0").iterdir())
    assert [file.name for file in files] == [f"{n}.jsonl" for n in range(6)]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted((row["item_id"], row["sample_idx"]) for row in rows[:6]) == [
        (f"g{n}", i) for n in range(3) for i in (0, 1)
    ]
    assert {row["run"] for row in rows} == {path.name for path in (made.path / "eval-results").glob("20*")}
    (made.path / "dumps2").write_text("")
    result = made.runpytest(*wanted, "--set=cluster.fileroot=dumps2")
    assert "rollout.dump_to_file: cannot write" in result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
