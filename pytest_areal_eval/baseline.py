"""The run of ``--baseline``: found before anything starts, and refused where it measured something else.

Invariant: a gate that counts from a baseline compares two checkpoints, never two prompts, samplings or graders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.errors import ConfigError, UserError
from pytest_areal_eval.run import DEFAULT_RESULTS_DIR

if TYPE_CHECKING:
    import pytest

    from pytest_areal_eval.options import Settings
    from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun
    from pytest_areal_eval.report.scoreboard import Row
    from pytest_areal_eval.run import Run


def read_baseline(config: pytest.Config, settings: Settings) -> SavedRun | None:
    """The run that the option names; None without it.

    Raises:
        UserError: there is no such run, or a ``--gate`` asks for one and none is given.
    """
    wanted = settings.get("baseline")
    if wanted is None:
        _refuse_gates_without_one(settings)
        return None
    from pytest_areal_eval.report.saved import find_run, read_run

    results_dir = config.invocation_params.dir / settings.get("results-dir", DEFAULT_RESULTS_DIR)
    return read_run(find_run(wanted, results_dir))


def _refuse_gates_without_one(settings: Settings) -> None:
    from pytest_areal_eval.stats import split_gate_option

    for text in settings.given.get("gate", []):
        if split_gate_option(text)[1].from_baseline:
            raise UserError(f"--gate={text}: there is no baseline", "Give the run to compare with: --baseline=RUN")


def refuse_other_measures(saved: SavedRun, run: Run) -> None:
    """Refuse a baseline whose scores were made otherwise than those that this session decides on.

    Raises:
        ConfigError: what differs, evaluation by evaluation.
    """
    from pytest_areal_eval.report.comparison import counterpart

    history = run.evaluations.history
    judged = history is not None and history.purpose == "from-run"
    today = history.info["evaluations"] if history is not None and judged else _as_saved(run.describe_evaluations())
    found = []
    for row in run.rows():
        before = counterpart(saved, row)
        if before is not None and any(gate.from_baseline for gate in row.gates):
            found += [f"  {row.name}: {said}" for said in _differences(before, today.get(row.name, {}))]
            found += [f"  {row.name}: {said}" for said in _other_items(before, row, run)]
    if found:
        hint = "Give another --baseline, or set it back."
        if all(": grading: " in line for line in found):
            hint += f" Or grade the baseline's answers as of today: --rescore={saved.name}"
        raise ConfigError("\n".join([f"--baseline: {saved.name} measured something else:", *found]), hint)


def _as_saved(described: Mapping[str, Any]) -> dict[str, Any]:
    """As ``run.json`` would give it back."""
    from pytest_areal_eval.journal import redact

    saved: dict[str, Any] = json.loads(json.dumps(redact(described)))
    return saved


def _differences(before: SavedEvaluation, today: Mapping[str, Any]) -> Iterator[str]:
    from pytest_areal_eval.report.comparison import code_changes, measured_otherwise

    yield from measured_otherwise(before.described, today)
    yield from (f"prompts: its {name} changed" for name in code_changes(before.described, today, ("prompt",)))


def _other_items(before: SavedEvaluation, row: Row, run: Run) -> Iterator[str]:
    """Items of the same name that are other questions."""
    from pytest_areal_eval.identity import selected_indices
    from pytest_areal_eval.journal import item_hash

    group = run.evaluations.groups[row.key]
    data, ids = group.plan.data, group.plan.ids
    if data.content_hash == before.described.get("dataset", {}).get("content_hash"):
        return
    here = {ids[index]: data.records[index] for index in selected_indices(group)}
    changed = [i for i, item in before.items.items() if i in here and item_hash(here[i]) != item.hash]
    if changed:
        shown = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")
        yield f"data: {len(changed)} items have other content: {shown}"
