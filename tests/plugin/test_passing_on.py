"""What leaves a session: the hook, trackers, a CI job's page.  Nothing does unasked; no failure changes a verdict."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.refusals import refused
from support.runs import episode, write_run
from tensorboardX.proto.event_pb2 import (
    Event,
)  # here: protobuf survives no second import, and pytester forgets the first

from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.report.outcome import RunReport, report_of
from pytest_areal_eval.report.saved import read_run
from pytest_areal_eval.runs import trackers

Suite = Callable[..., pytest.Pytester]

HOOK = """
def pytest_areal_eval_report(config, report):
    lines = [f"{report.name} {report.info['status']} {report.info['gates'][0]['outcome']}"]
    for one in report.scored:
        lines.append(f"{one.evaluation} {one.model} {one.step} {one.scalars()['reward']:.4f}")
    pathlib.Path("hook.txt").write_text("\\n".join(lines))
"""


def checkpoint(made: pytest.Pytester, name: str) -> None:
    """A folder that passes for a checkpoint."""
    folder = made.path / name
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 64}')
    (folder / "model.safetensors").touch()


def add_to_conftest(made: pytest.Pytester, source: str) -> None:
    conftest = made.path / "conftest.py"
    conftest.write_text(conftest.read_text() + source)


def test_a_conftest_and_tensorboard_hear_of_the_run_once_it_is_written(suite: Suite) -> None:
    made = suite(rows=3, more=', n_samples=2, gates=["reward >= 0.5"]')
    checkpoint(made, "step-40")
    add_to_conftest(made, HOOK)
    result = made.runpytest_subprocess("--model=step-40", "--track=tensorboard")
    assert result.ret == pytest.ExitCode.OK, result.outlines
    (run,) = (made.path / "eval-results").glob("2*")
    assert (made.path / "hook.txt").read_text().splitlines() == [
        f"{run.name} finished pass",
        "test_gsm step-40 40 0.6667",
    ]
    (file,) = (run / "tensorboard").iterdir()
    found = dict(scalars(file))
    assert found["test_gsm/reward"] == (40, pytest.approx(2 / 3))
    assert found["test_gsm/error_rate"] == (40, 0.0)
    assert {"test_gsm/pass_at_2", "test_gsm/mean_output_tokens", "test_gsm/reward_se"} <= found.keys()


def test_the_controlling_process_passes_on_what_workers_found(suite: Suite) -> None:
    made = suite(rows=3, more=', gates=["reward >= 0.5"]')
    add_to_conftest(made, HOOK)
    assert made.runpytest_subprocess("-n2", "--track=tensorboard").ret == pytest.ExitCode.OK
    assert (made.path / "hook.txt").read_text().splitlines()[1:] == ["test_gsm  None 0.6667"]
    (file,) = (made.path / "eval-results").glob("2*/tensorboard/*")
    assert dict(scalars(file))["test_gsm/reward"][1] == pytest.approx(2 / 3)


def test_without_the_option_nothing_is_written_for_trackers(suite: Suite) -> None:
    made = suite(rows=2)
    made.runpytest()
    names = [path.name for path in made.path.rglob("*")]
    assert not [name for name in names if any(mark in name for mark in ("tensorboard", "wandb", "mlflow", "mlruns"))]
    assert not {"wandb", "mlflow"} & set(sys.modules)


def test_a_tracker_that_fails_is_told_and_changes_no_verdict(suite: Suite) -> None:
    made = suite(rows=2)
    add_to_conftest(made, "\ndef pytest_areal_eval_report():\n    raise RuntimeError('the proxy says no')\n")
    result = made.runpytest()
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["pytest_areal_eval_report: RuntimeError: the proxy says no", "run: *"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--track=comet",), "--track: 'comet' is not tensorboard, wandb or mlflow"),
        (("--from-run=latest", "--track=tensorboard"), "--track with --from-run: that run's scores were tracked *"),
    ],
)
def test_what_cannot_be_tracked_is_a_usage_error(suite: Suite, args: tuple[str, ...], said: str) -> None:
    made = suite(rows=1)
    made.runpytest()
    refused(made.runpytest_subprocess(*args), pytest.ExitCode.USAGE_ERROR, f"*{said}")


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--track=mlflow needs mlflow\npip install mlflow"):
        trackers.register_trackers(pytestconfig, ["mlflow"])


def test_the_jobs_page_gets_the_summary(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    made = suite(rows=3, more=', gates=["reward >= 0.9"]')
    page = made.path / "summary.md"
    page.write_text("## another step's\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    assert made.runpytest().ret == pytest.ExitCode.TESTS_FAILED
    text = page.read_text()
    assert text.startswith("## another step's\n")
    assert "| test\\_gsm | 0.6667 ± " in text
    assert "❌ **test\\_gsm** reward 0.6667 &lt; 0.9" in text
    assert "1 missed items of test\\_gsm" in text
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(made.path / "no/such/summary.md"))
    made.runpytest("--resume").stdout.fnmatch_lines(["$GITHUB_STEP_SUMMARY: cannot write *: No such file or directory"])


@pytest.fixture
def two_steps(tmp_path: Path) -> RunReport:
    """Two checkpoints, of which one tells no step."""
    folder = write_run(
        tmp_path / "the-run",
        {"gsm[p]": [episode("a", 0, 1.0), episode("a", 1, 0.0)]},
        info={"settings": {"given": {"seed": 3}}, "git": {"commit": "f00"}, "command_line": ["pytest", "evals"]},
    )
    run = read_run(folder)
    (row,) = run.rows
    rows = []
    for model in ("base", "step-7"):
        (again,) = read_run(folder).rows
        again.evaluation, again.model = row.name, model
        rows.append(again)
    return report_of(folder, run.info, rows, ["ckpt/base", "ckpt/step-7"])


class FakeWandB(ModuleType):
    """The part of wandb 0.31 that is used, with its signatures; real ones were tried by hand."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list[Any] = []

    def init(self, *, name: str, job_type: str, config: Mapping[str, Any]) -> FakeWandB:
        self.calls.append((name, job_type, dict(config)))
        return self

    def __enter__(self) -> FakeWandB:
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.append("finished")

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.calls.append((name, step_metric))

    def log(self, data: Mapping[str, Any]) -> None:
        self.calls.append(dict(data))


def test_wandb_gets_a_curve_by_step_and_a_line_of_its_own_for_what_tells_none(
    two_steps: RunReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    trackers.WandB().pytest_areal_eval_report(two_steps)
    begun, *defined, base, step, finished = fake.calls
    assert begun == ("the-run", "evaluation", {"seed": 3, "command_line": "pytest evals", "commit": "f00"})
    assert defined == [("step", None), ("*", "step")]
    assert (base["step"], base["base/gsm[p]/reward"]) == (0, 0.5)
    assert (step["step"], step["gsm[p]/reward"], step["gsm[p]/pass@2"]) == (7, 0.5, 1.0)
    assert finished == "finished"


class FakeMLflow(ModuleType):
    """The part of mlflow 3.17 that is used, with its signatures and its rule for names."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.metrics: dict[tuple[str, int], float] = {}
        self.params: dict[str, Any] = {}

    def start_run(self, *, run_name: str) -> FakeMLflow:
        self.run_name = run_name
        return self

    def __enter__(self) -> FakeMLflow:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the run."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        self.params |= params

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            assert all(c.isalnum() or c in "_-. :/" for c in name), name
            self.metrics[name, step] = value


def test_mlflow_gets_names_that_it_takes(two_steps: RunReport, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    trackers.MLflow().pytest_areal_eval_report(two_steps)
    assert fake.run_name == "the-run"
    assert fake.params["seed"] == "3"
    assert fake.metrics["gsm_p_/pass_at_2", 7] == 1.0
    assert fake.metrics["base/gsm_p_/reward", 0] == 0.5


def scalars(file: Path) -> Iterator[tuple[str, tuple[int, float]]]:
    """The scalars in an event file: length, its checksum, the event, its checksum."""
    content, at = file.read_bytes(), 0
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        event = Event.FromString(content[at + 12 : at + 12 + size])
        for value in event.summary.value:
            yield value.tag, (event.step, value.simple_value)
        at += 16 + size
