"""What a session found, as it is handed to ``pytest_areal_eval_report`` and to trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_areal_eval.options.models import step_of
from pytest_areal_eval.report.saved import settings_of
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.stats import Summary

RATES = ("error_rate", "fault_rate", "truncation_rate", "mean_output_tokens")


@dataclass(frozen=True)
class Scored:
    """One evaluation of one checkpoint.

    Attributes:
        evaluation: its name, without the checkpoint's.
        model: the checkpoint's short name; empty where there is none.
        step: the training step in that name, if it tells one.
        summary: all numbers.
    """

    evaluation: str
    model: str
    step: int | None
    summary: Summary

    def scalars(self) -> dict[str, float]:
        """The numbers that are worth a curve: rewards, ``pass@k`` and ``maj@k``, rates, the workflow's own metrics."""
        s = self.summary
        estimates = {"reward": s.headline, "reward_scored": s.scored_only, **s.metrics}
        estimates |= {
            f"{name}@{k}": e for name, found in (("pass", s.pass_at), ("maj", s.maj_at)) for k, e in found.items()
        }
        values = {name: e.value for name, e in estimates.items() if e is not None}
        values |= {"reward_se": s.reward_se} if s.reward_se is not None else {}
        return values | {name: value for name in RATES if (value := getattr(s, name)) is not None}


@dataclass(frozen=True)
class RunReport:
    """A run that has ended.

    Attributes:
        folder: the run's; its name is the run's name.
        info: what ``run.json`` says: settings, checkpoints, versions, and at the end ``gates``.
        scored: the evaluations.
    """

    folder: Path
    info: Mapping[str, Any]
    scored: Sequence[Scored]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.name

    def config(self) -> dict[str, Any]:
        """What a tracker shows as a run's configuration: the options, the checkpoints, the code."""
        code = (self.info.get("git") or {}).get("commit")
        return {
            **settings_of(self.info),
            "command_line": " ".join(map(str, self.info.get("command_line", []))),
            "commit": code,
        }


def report_of(folder: Path, info: Mapping[str, Any], rows: Sequence[Row], models: Sequence[str]) -> RunReport:
    """What is reported of a run.

    Args:
        folder: the run's.
        info: its ``run.json``.
        rows: the evaluations that have results.
        models: what ``--model`` says.
    """
    only = Path(models[0]).name if len(models) == 1 else ""
    names = [(row, row.model or only) for row in rows]
    return RunReport(folder, info, [Scored(row.evaluation, name, step_of(name), row.summary()) for row, name in names])
