"""TensorBoard, Weights & Biases and MLflow: each a plugin that ``--track`` registers.

Invariant: without the option nothing is imported and nothing is sent.  Where a tracker sends to, and as whom, is its
own configuration (``WANDB_PROJECT``, ``MLFLOW_TRACKING_URI``, ...).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import pytest

from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.report.outcome import RunReport, Scored

_NOT_PLAIN = re.compile(r"[^\w\-./]")


class TensorBoard:
    """Event files in the run's folder: ``tensorboard --logdir eval-results`` shows all runs."""

    @pytest.hookimpl
    def pytest_areal_eval_report(self, report: RunReport) -> None:
        """Write a scalar for each number, at the checkpoint's training step."""
        from tensorboardX import SummaryWriter

        for model, scored in _by_curve(report):
            with SummaryWriter(str(report.folder / "tensorboard" / model)) as writer:
                for one in scored:
                    for name, value in one.scalars().items():
                        writer.add_scalar(_plain(f"{one.evaluation}/{name}"), value, one.step or 0)


class WandB:
    """One run of Weights & Biases, in the project that its own configuration names."""

    @pytest.hookimpl
    def pytest_areal_eval_report(self, report: RunReport) -> None:
        """Log the numbers against the training step."""
        import wandb

        with wandb.init(name=report.name, job_type="evaluation", config=report.config()) as run:
            run.define_metric("step")
            run.define_metric("*", step_metric="step")
            for model, scored in _by_curve(report):
                for step in dict.fromkeys(one.step for one in scored):
                    mine = [one for one in scored if one.step == step]
                    values = {_path(model, one.evaluation, n): v for one in mine for n, v in one.scalars().items()}
                    run.log({**values, "step": step or 0})


class MLflow:
    """One run of MLflow, in the experiment that its own configuration names."""

    @pytest.hookimpl
    def pytest_areal_eval_report(self, report: RunReport) -> None:
        """Log the options as parameters and the numbers as metrics at the training step."""
        import mlflow

        with mlflow.start_run(run_name=report.name):
            mlflow.log_params({name: str(value)[:500] for name, value in report.config().items()})
            for model, scored in _by_curve(report):
                for one in scored:
                    values = {_plain(_path(model, one.evaluation, n)): v for n, v in one.scalars().items()}
                    mlflow.log_metrics(values, step=one.step or 0)


TRACKERS = {"tensorboard": (TensorBoard, "tensorboardX"), "wandb": (WandB, "wandb"), "mlflow": (MLflow, "mlflow")}
"""What ``--track`` may name, with the module that it needs."""


def register_trackers(config: pytest.Config, names: Sequence[str]) -> None:
    """Register the trackers that ``--track`` names.

    Raises:
        ConfigError: one is not installed.
    """
    for name in dict.fromkeys(names):
        tracker, module = TRACKERS[name]
        if find_spec(module) is None:
            raise ConfigError(f"--track={name} needs {module}", f"pip install {module}")
        if not config.pluginmanager.has_plugin(f"areal-eval-{name}"):
            config.pluginmanager.register(tracker(), f"areal-eval-{name}")


def _by_curve(report: RunReport) -> Iterator[tuple[str, list[Scored]]]:
    """What belongs on one curve: all checkpoints whose names tell a step; any other one of several by itself."""
    several = len({one.model for one in report.scored}) > 1
    curves: dict[str, list[Scored]] = {}
    for one in report.scored:
        curves.setdefault(one.model if several and one.step is None else "", []).append(one)
    yield from curves.items()


def _path(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def _plain(name: str) -> str:
    """``test_gsm_p_/pass_at_4`` for ``test_gsm[p]/pass@4``: what TensorBoard and MLflow take for a name."""
    return _NOT_PLAIN.sub("_", name.replace("@", "_at_"))
