"""The run of ``--baseline``: found before anything starts, and refused where it measured something else.

Invariant: a gate that counts from a baseline compares two checkpoints, never two prompts, samplings or graders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.errors import ConfigError, UserError
from pytest_areal_eval.report.text import items_are

if TYPE_CHECKING:
    from pytest_areal_eval.options.settings import Settings
    from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun
    from pytest_areal_eval.report.scoreboard import Row
    from pytest_areal_eval.runs.run import Run
    from pytest_areal_eval.stats import Baseline


def refer(run: Run) -> Reference | None:
    """The run that the option names, held against a session; None without it.

    Raises:
        UserError: there is no such run, it is no baseline of this session, or a ``--gate`` asks for one and none is
            given.
    """
    settings = run.evaluations.settings
    wanted = settings.get("baseline")
    if wanted is None:
        _refuse_gates_without_one(settings)
        return None
    from pytest_areal_eval.report.saved import find_run, read_run

    return Reference(read_run(find_run(wanted, run.results_dir)), run)


def _refuse_gates_without_one(settings: Settings) -> None:
    from pytest_areal_eval.stats import split_gate_option

    for text in settings.given.get("gate", []):
        if split_gate_option(text)[1].from_baseline:
            raise UserError(f"--gate={text}: there is no baseline", "Give the run to compare with: --baseline=RUN")


class Reference:
    """A baseline held against a session.

    Args:
        saved: the baseline.
        run: the session's, with its rows and with the earlier run that it goes back to.

    Raises:
        ConfigError: a gate counts from scores that were made otherwise than those that this session decides on.
    """

    def __init__(self, saved: SavedRun, run: Run) -> None:
        from pytest_areal_eval.report.comparison import baselines, counterpart

        self._find = baselines(saved)
        self._saved = saved
        self._differs: dict[str, list[str]] = {}
        today, gated = _described(run), []
        for row in run.rows():
            before = counterpart(saved, row)
            if before is None:
                differs = ["it is not in that run"]
            else:
                differs = [*_differences(before, today.get(row.name, {})), *_other_items(before, run, row.key)]
            self._differs[row.key] = differs
            gated += [f"  {row.name}: {said}" for said in differs if any(gate.from_baseline for gate in row.gates)]
        if gated:
            hint = "Give another --baseline, or set it back."
            if all(": grading: " in line for line in gated):
                hint += f" Or grade the baseline's answers as of today: --rescore={saved.name}"
            raise ConfigError("\n".join([f"--baseline: {saved.name} is no baseline for these gates:", *gated]), hint)

    def of(self, row: Row) -> Baseline:
        """What ``baseline`` means in an evaluation's gates.

        Raises:
            ConfigError: the two share no item.
        """
        found = self._find(row)
        if found is None:
            raise ConfigError(f"{row.name} has no finished item that the baseline {self._saved.name} has too")
        return found

    def lines(self, rows: Sequence[Row]) -> Iterator[str]:
        """What changed since the baseline, evaluation by evaluation."""
        from pytest_areal_eval.report.comparison import change_since, counterpart

        for row in rows:
            before, differs = counterpart(self._saved, row), self._differs.get(row.key)
            if before is None or differs:
                yield f"baseline {row.name}: no comparison with {self._saved.name}: {'; '.join(differs or ())}"
            elif change := change_since(before.row, row):
                yield f"baseline {row.name}: {change}; flips: areal-eval compare {self._saved.name}"
            else:
                yield f"baseline {row.name}: no finished item is also in {self._saved.name}"


def _described(run: Run) -> Mapping[str, Any]:
    """The evaluations whose scores this session decides on, as their ``run.json`` describes them."""
    from pytest_areal_eval.redact import redact

    history = run.evaluations.history
    if history is not None and history.purpose == "from-run":
        judged: Mapping[str, Any] = history.info["evaluations"]
        return judged
    today = run.info.get("evaluations") or run.describe_evaluations()  # the former where workers collected
    saved: Mapping[str, Any] = json.loads(json.dumps(redact(today)))
    return saved


def _differences(before: SavedEvaluation, today: Mapping[str, Any]) -> Iterator[str]:
    from pytest_areal_eval.report.comparison import code_changes, measured_otherwise

    yield from measured_otherwise(before.described, today)
    yield from (f"prompts: its {name} changed" for name in code_changes(before.described, today, ("prompt",)))


def _other_items(before: SavedEvaluation, run: Run, key: str) -> Iterator[str]:
    """Items of the same name that are other questions."""
    from pytest_areal_eval.journal import item_hash
    from pytest_areal_eval.runs.identity import selected_indices

    group = run.evaluations.groups.get(key)
    if group is None:
        return  # a worker's, which has looked
    data, ids = group.plan.data, group.plan.ids
    if data.content_hash == before.described.get("dataset", {}).get("content_hash"):
        return
    here = {ids[index]: data.records[index] for index in selected_indices(group)}
    changed = [i for i, item in before.items.items() if i in here and item_hash(here[i]) != item.hash]
    if changed:
        shown = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")
        yield f"data: {items_are(len(changed))} of another content: {shown}"
