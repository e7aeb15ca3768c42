"""Several checkpoints side by side: a row for each evaluation, a column for each checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_areal_eval.options.models import step_of
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.stats import Estimate


@dataclass(frozen=True)
class Grid:
    """The rewards of all evaluations with all checkpoints.

    Attributes:
        evaluations: names without the checkpoint's, in their order.
        models: short names, in the order of ``--model``.
        rows: by (evaluation, model), where there is any result.
    """

    evaluations: Sequence[str]
    models: Sequence[str]
    rows: Mapping[tuple[str, str], Row]

    def reward(self, evaluation: str, model: str) -> Estimate | None:
        """The headline; None where nothing was scored."""
        row = self.rows.get((evaluation, model))
        return row.summary().headline if row is not None else None

    def by_step(self, evaluation: str) -> list[tuple[int, str, Estimate]]:
        """Training steps, names and rewards of the checkpoints whose name tells a step, by step."""
        steps = [(step, model) for model in self.models if (step := step_of(model)) is not None]
        found = [(step, model, self.reward(evaluation, model)) for step, model in sorted(steps)]
        return [(step, model, reward) for step, model, reward in found if reward is not None]


def grid_of(rows: Sequence[Row]) -> Grid | None:
    """The rows side by side; None where there are no two checkpoints."""
    models = dict.fromkeys(row.model for row in rows if row.model)
    if len(models) < 2:
        return None
    evaluations = dict.fromkeys(row.evaluation for row in rows if row.model)
    return Grid(list(evaluations), list(models), {(row.evaluation, row.model): row for row in rows})
