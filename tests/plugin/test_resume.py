"""A run that was interrupted goes on; its answers are graded anew; its gates are judged anew."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.graded import EXACT, GRADED, LENIENT
from support.refusals import refused

from pytest_areal_eval.journal import RunFolder, read_episodes
from pytest_areal_eval.report.saved import list_runs

Suite = Callable[..., pytest.Pytester]
Counts = Callable[[], dict[str, int]]

CUT_SHORT = """
import os
HERE = pathlib.Path(__file__).parent

@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    stop = HERE / "stop-after"
    if report.when == "call" and stop.exists() and (left := int(stop.read_text()) - 1) >= 0:
        stop.write_text(str(left))
        if left == 0:
            os._exit(9)
"""
"""The process dies after a number of reports, as by SIGKILL: no hook and no finalizer runs any more."""


@pytest.fixture
def killed(pytester: pytest.Pytester) -> Callable[..., Path]:
    """Run the suite in a process that dies after ``reports`` reports; its run's folder."""

    def run(reports: int, *args: str) -> Path:
        conftest = pytester.path / "conftest.py"
        if CUT_SHORT not in conftest.read_text():
            conftest.write_text(conftest.read_text() + CUT_SHORT)
        (pytester.path / "stop-after").write_text(str(reports))
        result = pytester.runpytest_subprocess(*args)
        assert result.ret == 9, result.stdout.str() + result.stderr.str()
        (pytester.path / "stop-after").unlink()
        return newest(pytester)

    return run


def newest(pytester: pytest.Pytester) -> Path:
    """The run that was made last."""
    runs = list_runs(pytester.path / "eval-results")
    return max(runs, key=lambda run: json.loads((run / "run.json").read_text())["started_at"])


def lines(run: Path, kind: str = "episode") -> list[dict[str, Any]]:
    """A journal's lines of one kind."""
    found = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def summary(run: Path) -> dict[str, Any]:
    """A run's summaries, without what is measured by the clock."""
    evaluations = json.loads((run / "run.json").read_text())["evaluations"]
    return {name: {k: v for k, v in e["summary"].items() if not k.endswith("_s")} for name, e in evaluations.items()}


def edit(pytester: pytest.Pytester, old: str, new: str, file: str = "test_evals.py") -> None:
    """Change the suite's source; the other size makes sure that no stale bytecode is used."""
    path = pytester.path / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new) + f"# {len(new)}\n")


def ids(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(row["item_id"] for row in rows)


def test_a_killed_run_goes_on_with_what_it_owes(
    suite: Suite, killed: Callable[..., Path], engine_counts: Counts
) -> None:
    """C20, C27, C28: killed at 60 %, the rest is done and the summary is that of an uninterrupted run."""
    made = suite(rows=30, latency="0.01", concurrency=2, more=', gates=["reward >= 0.5"]')
    run = killed(18)
    done = len(lines(run))
    assert 18 <= done < 30
    result = made.runpytest("--resume")
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes() == {"passed": 21, "missed": 10}
    result.stdout.fnmatch_lines(
        [f"*resumes {run.name}: {done} of 30 episodes are there", f"run: eval-results/{run.name}"]
    )
    assert engine_counts()["requests"] <= 30 - done
    assert len(ids(lines(run))) == len(set(ids(lines(run)))) == 30
    made.runpytest()
    assert newest(made) != run
    assert summary(run) == summary(newest(made))


def test_a_run_killed_twenty_times_ends_as_one_that_never_was(suite: Suite) -> None:
    """C20, C28, C29c: SIGKILL at random moments; no episode is lost, wrong or counted twice, after any of them."""
    made, chance = suite(rows=240, latency="0.03", concurrency=4), random.Random(17)
    made.runpytest()
    whole = newest(made)
    answers, kept = finished(whole), 0
    for kill in range(20):
        command = [sys.executable, "-m", "pytest", "-q", *(["--resume"] if kill else [])]
        with subprocess.Popen(command, cwd=made.path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            watch_growth(made, chance.randint(1, 5), process)
            time.sleep(chance.random() * 0.02)
            process.kill()
            said = process.communicate(timeout=60)[1].decode()
        assert process.returncode == -9, said
        found = finished(newest(made))
        assert found.items() <= answers.items()
        assert len(found) >= kept
        kept = len(found)
    assert kept < 240
    assert made.runpytest("--resume").parseoutcomes() == {"passed": 160, "missed": 80}
    run = newest(made)
    assert run != whole
    assert finished(run) == answers
    assert summary(run) == summary(whole)
    assert len(ids(lines_that_are_whole(run))) == len(set(ids(lines_that_are_whole(run)))) == 240


def finished(run: Path) -> dict[tuple[str, int], tuple[str, float, str]]:
    """Status, reward and answer of each episode in a journal, whose last line may be torn."""
    rows = lines_that_are_whole(run)
    return {(row["item_id"], row["index"]): (row["status"], row["reward"], row["completion"]) for row in rows}


REPLAYED = """
from pytest_areal_eval import evaluation

ROWS = [{"id": f"g{n}", "question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\\n#### {2 * n}"}
        for n in range(150)]

@evaluation(ROWS, prompt="question", reward_fn="pytest_areal_eval.rewards.gsm8k_reward_fn", gates=["reward >= 0.5"])
def test_gsm(rollout):
    pass
"""


def test_a_killed_replay_resumes_to_the_same_table(suite: Suite, killed: Callable[..., Path]) -> None:
    """C20, C27: the table of 150 items, not of those that were left."""
    made = suite(source=REPLAYED)
    made.makeconftest("import pathlib\nimport pytest\n")
    rows = [{"id": f"g{n}", "completion": f"It is \\\\boxed{{{2 * n + n % 3 // 2}}}."} for n in range(150)]
    (made.path / "recorded.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = killed(60, "--replay=recorded.jsonl")
    resumed = made.runpytest("--replay=recorded.jsonl", "--resume")
    assert newest(made) == run
    whole = made.runpytest("--replay=recorded.jsonl")
    assert newest(made) != run
    assert summary(run) == summary(newest(made))
    tables = [
        [line.split()[:6] for line in r.outlines if line.startswith(("test_gsm ", "gate "))] for r in (resumed, whole)
    ]
    assert tables[0] == tables[1] != []
    assert resumed.parseoutcomes() == whole.parseoutcomes() == {"passed": 101, "missed": 50}


def watch_growth(pytester: pytest.Pytester, count: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the journals have grown by ``count`` lines, or the process has ended."""
    journals = pytester.path / "eval-results"
    before, end = growth(journals), time.monotonic() + 60
    while growth(journals) < before + count and process.poll() is None:
        assert time.monotonic() < end, f"the journal has not grown by {count} lines within 60 s"
        time.sleep(0.002)


def growth(results: Path) -> int:
    return sum((run / "episodes.jsonl").read_bytes().count(b"\n") for run in list_runs(results) if has_journal(run))


def has_journal(run: Path) -> bool:
    return (run / "episodes.jsonl").exists()


def lines_that_are_whole(run: Path) -> list[dict[str, Any]]:
    """The episodes' lines of a journal in which torn ones may stand."""
    return list(read_episodes(run, []))


def test_a_run_that_owes_nothing_starts_no_engine(suite: Suite, engine_counts: Counts) -> None:
    made = suite(rows=6)
    first = made.runpytest()
    engine_counts()
    again = made.runpytest("--resume", "-v")
    assert engine_counts() == {}
    assert again.parseoutcomes() == first.parseoutcomes()
    again.stdout.fnmatch_lines(["*test_gsm?g1? MISSED*"])
    assert len(list_runs(made.path / "eval-results")) == 1


def test_several_answers_of_an_item_stay_several(suite: Suite, killed: Callable[..., Path]) -> None:
    """C23, C25: each repeat has an answer of its own, after a resume too."""
    made = suite(rows=8, rule="return f'a{number}'", latency="0.01", concurrency=2, more=", n_samples=4")
    run = killed(3)
    made.runpytest("--resume")
    rows = [row for row in lines(run) if row["item_id"] == "g0"]
    assert len(lines(run)) == 32
    assert [row["index"] for row in sorted(rows, key=lambda row: row["index"])] == [0, 1, 2, 3]
    assert len({row["completion"] for row in rows}) == 4


@pytest.mark.parametrize("keep", [0, 1, 40, -1, -40])
def test_a_torn_last_line_is_owed(suite: Suite, engine_counts: Counts, keep: int) -> None:
    """C29c: cut anywhere in its last line, a journal is resumed, and that one episode is run again."""
    made = suite(rows=4)
    made.runpytest()
    run = newest(made)
    whole = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (run / "episodes.jsonl").write_bytes(b"".join(whole[:-1]) + whole[-1][:keep])
    engine_counts()
    result = made.runpytest("--resume")
    assert result.parseoutcomes() == {"passed": 3, "missed": 1}
    assert not engine_counts().get("requests")  # its answer was journalled before it was graded
    assert {row["item_id"] for row in read_episodes(run, [])} == {"g0", "g1", "g2", "g3"}


def test_a_crash_while_grading_costs_no_generation(suite: Suite, engine_counts: Counts) -> None:
    """The answers of episodes that were being graded are there, and are graded without the engine."""
    made = suite(rows=5)
    made.runpytest()
    run = newest(made)
    kept = [json.dumps(row, separators=(",", ":")) for row in lines(run, "generation")]
    (run / "episodes.jsonl").write_text("\n".join(kept) + "\n")
    engine_counts()
    result = made.runpytest("--resume")
    assert result.parseoutcomes() == {"passed": 3, "missed": 2}
    assert engine_counts()["requests"] == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--temperature=0.7",), "test_gsm: sampling.temperature was 0.0, is 0.7"),
        (("--n-samples=2",), "test_gsm: n_samples was 1, is 2"),
        (("--seed=1",), "test_gsm: seed was 0, is 1"),
        (("--max-new-tokens=9",), "test_gsm: sampling.max_new_tokens was 16384, is 9"),
        (("--limit=3",), "test_gsm: 3 items are not selected: g*"),
        (("-k", "g1 or g2"), "test_gsm: 4 items are not selected: g0, g3, g4, g5"),
    ],
)
def test_other_settings_are_refused_with_what_differs(suite: Suite, args: tuple[str, ...], said: str) -> None:
    """C24: a run at T=0 is never continued at T=0.7."""
    made = suite(rows=6)
    made.runpytest()
    result = made.runpytest("--resume", *args)
    refused(result, pytest.ExitCode.USAGE_ERROR, said, "--resume: * was made otherwise:", "Change it back, or start")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"answer": f"a{n}"', '"answer": f"b{n}"', "test_gsm: 6 items are of another content: g0, g1, g2, g3, g4, …"),
        ("range(6)", "range(7)", "test_gsm: 1 item is not in the run: g6"),
        ('f"g{n}"', 'f"g{n + 1}"', "test_gsm: 5 items are of another content: g1, g2, g3, g4, g5"),
        ('"support.ask.Ask"', '"another.Ask"', "test_gsm: workflow was *"),
        ("def test_gsm(", "def test_other(", "no run in * is one of test_other"),
    ],
)
def test_other_data_or_code_is_refused(suite: Suite, old: str, new: str, said: str) -> None:
    """C24: an inserted row shifts ids, an edited row keeps its; neither takes an answer to another question."""
    made = suite(rows=6)
    made.makepyfile(another="from support.ask import Ask as Base\n\nclass Ask(Base):\n    pass\n")
    made.runpytest()
    edit(made, old, new)
    refused(made.runpytest_subprocess("--resume"), pytest.ExitCode.USAGE_ERROR, said)


def test_another_checkpoint_under_the_same_path_is_refused(suite: Suite, engine_counts: Counts) -> None:
    """C29b: the old checkpoint's results came back after its files were overwritten."""
    made = suite(rows=4)
    folder = made.path / "ckpt"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 99999}')
    (folder / "model.safetensors").write_bytes(b"x" * 99)
    made.runpytest("--model=ckpt")
    engine_counts()
    again = made.runpytest("--model=ckpt", "--resume")
    assert (again.ret, engine_counts()) == (pytest.ExitCode.OK, {})
    moved = folder.rename(made.path / "elsewhere")
    assert made.runpytest("--model=elsewhere", "--resume").ret == pytest.ExitCode.OK
    (moved / "model.safetensors").write_bytes(b"x" * 98 + b"y")
    said = "--model=elsewhere: the checkpoint's files are others: fingerprint * was evaluated, * is there now"
    refused(made.runpytest_subprocess("--model=elsewhere", "--resume"), pytest.ExitCode.USAGE_ERROR, f"*{said}")


IN_TURN = """
import pathlib
import pytest
from pytest_areal_eval.controller import RolloutController
from support.rule_engine import RuleEngine

@pytest.fixture(scope="session")
def controller(areal_model):
    made = RolloutController(RuleEngine(lambda question, n: f"a{question[1:]}"))
    made.initialize()
    yield made
    made.destroy()
"""


def test_a_run_killed_before_its_last_checkpoints_turn_goes_on(suite: Suite, killed: Callable[..., Path]) -> None:
    """Only the checkpoints whose turn had come have fingerprints to agree with."""
    made = suite(rows=4)
    made.makeconftest(IN_TURN)
    for name in ("step-1", "step-2"):
        (made.path / name).mkdir()
        (made.path / name / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 99999}')
        (made.path / name / "model.safetensors").write_text(name)
    run = killed(2, "--model=step-*")
    assert list(json.loads((run / "run.json").read_text())["models"]) == ["step-1"]
    assert made.runpytest("--model=step-*", "--resume").parseoutcomes() == {"passed": 8}
    assert list(json.loads((run / "run.json").read_text())["models"]) == ["step-1", "step-2"]
    assert len(ids(lines(run))) == 8


def test_a_reordered_dataset_is_the_same_one(suite: Suite, engine_counts: Counts) -> None:
    made = suite(rows=6)
    first = made.runpytest()
    engine_counts()
    edit(made, "range(6)]", "reversed(range(6))]")
    again = made.runpytest_subprocess("--resume")
    assert again.parseoutcomes() == first.parseoutcomes()
    assert engine_counts() == {}


@pytest.fixture
def graded(suite: Suite) -> pytest.Pytester:
    """A suite whose reward is in a file of its own; three of its four items pass."""
    made = suite(source=GRADED)
    (made.path / "grading.py").write_text(EXACT)
    assert made.runpytest_subprocess().ret == pytest.ExitCode.TESTS_FAILED
    return made


def test_another_reward_is_refused_and_rescored(graded: pytest.Pytester, engine_counts: Counts) -> None:
    """C21: all answers are there and the reward was mended: they are graded with no server at all."""
    run, _ = newest(graded), engine_counts()
    (graded.path / "grading.py").write_text(LENIENT)
    said = ("test_gsm: the code of its reward_fn changed", f"--rescore={run.name}")
    refused(graded.runpytest_subprocess("--resume"), pytest.ExitCode.USAGE_ERROR, *said)
    result = graded.runpytest_subprocess(f"--rescore={run.name}")
    assert result.ret == pytest.ExitCode.OK, result.stdout.str()
    assert engine_counts() == {}
    again = newest(graded)
    assert [row["reward"] for row in lines(again)] == [1.0] * 4
    assert [row["reward"] for row in sorted(lines(run), key=lambda row: row["item_id"])] == [1.0, 0.0, 1.0, 1.0]
    assert json.loads((again / "run.json").read_text())["rescored_from"] == run.name
    assert graded.runpytest_subprocess(f"--rescore={again.name}").ret == pytest.ExitCode.OK
    refused(graded.runpytest_subprocess(f"--resume={again.name}"), pytest.ExitCode.USAGE_ERROR, "was graded from")


def test_rescore_refuses_what_was_never_answered(graded: pytest.Pytester) -> None:
    run = newest(graded)
    kept = [row for row in (run / "episodes.jsonl").read_text().splitlines() if '"item_id":"g2"' not in row]
    (run / "episodes.jsonl").write_text("\n".join(kept) + "\n")
    for option in ("--rescore", "--from-run"):
        result = graded.runpytest_subprocess(f"{option}={run.name}")
        refused(result, pytest.ExitCode.USAGE_ERROR, f"{run.name} lacks 1 of 4 episodes", "Finish it first")


def test_gates_are_judged_anew_on_the_scores_of_a_run(suite: Suite, engine_counts: Counts) -> None:
    made = suite(rows=6, more=', gates=["reward >= 0.9"]')
    assert made.runpytest("--n-samples=2").ret == pytest.ExitCode.TESTS_FAILED
    run, _ = newest(made), engine_counts()
    before = (run / "episodes.jsonl").read_bytes(), (run / "run.json").read_bytes()
    edit(made, "reward >= 0.9", "reward >= 0.6")
    result = made.runpytest_subprocess(f"--from-run={run.name}")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["gate PASS  test_gsm: reward 0.6667 >= 0.6*"])
    assert engine_counts() == {}
    assert before == ((run / "episodes.jsonl").read_bytes(), (run / "run.json").read_bytes())
    assert newest(made) == run


def test_a_failed_assertion_of_an_async_test_fails_from_the_journal_too(suite: Suite) -> None:
    source = """
    from pytest_areal_eval import evaluation

    @evaluation([{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(3)])
    async def test_own(item, engine):
        reply = await engine.chat([{"role": "user", "content": item["question"]}])
        assert reply.text == item["answer"]
    """
    made = suite(source=source)
    made.runpytest()
    result = made.runpytest("--resume")
    assert result.parseoutcomes() == {"passed": 2, "failed": 1}
    result.stdout.fnmatch_lines(["*assert*'wrong' == 'a1'*"])


def test_a_run_that_another_process_holds_is_refused(suite: Suite) -> None:
    """C28: two resumes cannot interleave; the message names the host and the process."""
    made = suite(rows=3)
    made.runpytest()
    with RunFolder.open(newest(made)):
        refused(made.runpytest_subprocess("--resume"), pytest.ExitCode.USAGE_ERROR, "is held by process * on *")
    assert made.runpytest_subprocess("--resume").ret == pytest.ExitCode.OK


def test_collecting_holds_and_changes_nothing(suite: Suite) -> None:
    made = suite(rows=3)
    made.runpytest()
    before = (newest(made) / "run.json").read_bytes()
    assert made.runpytest("--resume", "--collect-only").ret == pytest.ExitCode.OK
    assert before == (newest(made) / "run.json").read_bytes()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--resume",), "--resume: no run in * is one of test_gsm"),
        (("--resume=nothing",), "there is no run 'nothing'*"),
        (("--rescore=nothing",), "--rescore: there is no run 'nothing'*"),
        (("--resume", "--rescore=x"), "--resume and --rescore exclude each other; give one"),
    ],
)
def test_a_run_that_is_not_there_is_refused(suite: Suite, args: tuple[str, ...], said: str) -> None:
    refused(suite(rows=2).runpytest_subprocess(*args), pytest.ExitCode.USAGE_ERROR, said)


def test_resume_alone_does_not_take_the_next_word(suite: Suite) -> None:
    made = suite(rows=2)
    made.runpytest()
    assert made.runpytest("--resume", "test_evals.py").parseoutcomes() == {"passed": 1, "missed": 1}
