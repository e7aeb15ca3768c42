"""The page's static part: the table of evaluations with their intervals, the gates, and the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pytest_areal_eval.report.saved import SavedRun
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.report.table import cells_of, columns_of, notes_of
from pytest_areal_eval.report.text import printable
from pytest_areal_eval.stats import Estimate

_WORDS = {"pass": "PASS", "fail": "FAIL", "skip": "SKIP", "inconclusive": "INCONCLUSIVE"}
_WIDTH, _HEIGHT = 160, 18


def summary_html(rows: Sequence[Row]) -> str:
    """The table that pytest prints, with a drawing of each interval."""
    cells = [cells_of(row, row.summary()) for row in rows]
    names = columns_of(cells)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(_row(row, mine, names) for row, mine in zip(rows, cells, strict=True))
    table = f"<table><thead><tr>{head}<th>0 to 1</th></tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def gates_html(gates: Sequence[Mapping[str, Any]]) -> str:
    """One line for each gate."""
    lines = "".join(
        f'<li><span class="chip {escape(str(gate["outcome"]))}">{_WORDS.get(gate["outcome"], "?")}</span> '
        f"<b>{escape(str(gate['evaluation']))}</b> {escape(str(gate['message']))}</li>"
        for gate in gates
    )
    return f'<ul class="gates">{lines}</ul>' if lines else ""


def notes_html(run: SavedRun) -> str:
    """What must not be overlooked."""
    notes = [*run.gaps, *(note for row in run.rows for note in notes_of(row))]
    lines = "".join(f"<li>{escape(printable(note))}</li>" for note in notes)
    return f'<ul class="notes">{lines}</ul>' if lines else ""


def _row(row: Row, cells: Mapping[str, str], names: Sequence[str]) -> str:
    columns = "".join(f"<td>{escape(cells.get(name, ''))}</td>" for name in names)
    return f"<tr>{columns}<td>{_interval(row.summary().headline)}</td></tr>"


def _interval(estimate: Estimate | None) -> str:
    """A line from 0 to 1 with the 95 % interval and the mean; nothing for rewards outside."""
    if estimate is None or not 0.0 <= estimate.value <= 1.0:
        return ""
    low, high = estimate.ci or (estimate.value, estimate.value)
    middle, scale = _HEIGHT / 2, _WIDTH - 8
    x = [4 + scale * min(max(value, 0.0), 1.0) for value in (low, high, estimate.value)]
    return (
        f'<svg class="interval" width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{low:.3f} to {high:.3f}">'
        f'<line class="axis" x1="4" x2="{_WIDTH - 4}" y1="{middle}" y2="{middle}"/>'
        f'<line class="ci" x1="{x[0]:.1f}" x2="{x[1]:.1f}" y1="{middle}" y2="{middle}"/>'
        f'<circle class="mean" cx="{x[2]:.1f}" cy="{middle}" r="4"/></svg>'
    )
