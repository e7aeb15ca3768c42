"""A run's summary as GitHub's Markdown, for a pull request's comment or ``$GITHUB_STEP_SUMMARY``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_areal_eval.report.grid import grid_of
from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun
from pytest_areal_eval.report.table import cells_of, columns_of, notes_of, score_text
from pytest_areal_eval.report.text import printable

_MARKS = {"pass": "✅", "fail": "❌", "skip": "⏭️", "inconclusive": "❓"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+\-!|~&$:])")
_MENTION = re.compile("@(?=[A-Za-z])")


def markdown(run: SavedRun) -> str:
    """The table, the gates, what must not be overlooked, and of each evaluation that fails a gate five missed items."""
    shown = [e for e in run.evaluations.values() if e.row.results]
    parts = [
        f"### {_text(', '.join(run.models) or run.name)}",
        _grid(shown),
        _table(shown),
        _gates(run.gates),
    ]
    parts += [_notes(run, shown), *(_missed(e) for e in shown if _fails(e, run.gates))]
    return "\n\n".join(part for part in parts if part) + f"\n\n<sub>run {_text(run.name)}</sub>\n"


def _table(shown: Sequence[SavedEvaluation]) -> str:
    cells = [cells_of(e.row, e.row.summary()) for e in shown]
    names = columns_of(cells)
    return _laid_out(names, [[row.get(name, "") for name in names] for row in cells])


def _grid(shown: Sequence[SavedEvaluation]) -> str:
    """Several checkpoints side by side; nothing for one."""
    grid = grid_of([e.row for e in shown])
    if grid is None:
        return ""
    rows = [[name, *(score_text(grid.reward(name, model)) for model in grid.models)] for name in grid.evaluations]
    return _laid_out(["reward", *map(_text, grid.models)], rows)


def _laid_out(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *([_text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gates(gates: Sequence[Mapping[str, Any]]) -> str:
    lines = (f"- {_MARKS.get(g['outcome'], '')} **{_text(g['evaluation'])}** {_text(g['message'])}" for g in gates)
    return "\n".join(lines)


def _notes(run: SavedRun, shown: Sequence[SavedEvaluation]) -> str:
    notes = [*run.gaps, *(note for e in shown for note in notes_of(e.row))]
    return "\n".join(f"- ⚠️ {_text(note)}" for note in notes)


def _fails(evaluation: SavedEvaluation, gates: Sequence[Mapping[str, Any]]) -> bool:
    return any(g["evaluation"] == evaluation.name and g["outcome"] in ("fail", "inconclusive") for g in gates)


def _missed(evaluation: SavedEvaluation) -> str:
    row = evaluation.row
    lines = [f"<details><summary>{row.summary().missed} missed items of {_text(evaluation.name)}</summary>", ""]
    lines += ["| item | reward | status | answer | gold |", "| --- | ---: | --- | --- | --- |"]
    for e in row.examples:
        cells = (e.item_id, f"{e.reward:.3f}", e.status, e.answer, e.gold)
        lines.append(f"| {' | '.join(map(_text, cells))} |")
    return "\n".join([*lines, "", "</details>"]) if row.examples else ""


def _text(text: object) -> str:
    """Foreign text as text: no markup, no link, no mention, no new line."""
    line = _SPECIAL.sub(r"\\\1", " ".join(printable(str(text)).split())).replace(r"\<", "&lt;")
    return _MENTION.sub("@\u200b", line)
