"""The summary table: for each evaluation its score with its error, what did not score, its tokens and its time."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.report.grid import grid_of
from pytest_areal_eval.report.reasons import shared_reason
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.report.text import count, printable, seconds
from pytest_areal_eval.stats import Estimate, Summary

if TYPE_CHECKING:
    from rich.table import Table

Cells = dict[str, str]


def summary_lines(rows: Sequence[Row], width: int | None) -> list[str]:
    """The table as plain lines, then a line for each thing that must not be overlooked.

    Args:
        rows: the evaluations.
        width: of the terminal, in columns; None where there is none: a log has room for all.
    """
    table = _render([cells_of(row, row.summary()) for row in rows], width)
    return [*table, *grid_lines(rows, width), *(note for row in rows for note in notes_of(row))]


def grid_lines(rows: Sequence[Row], width: int | None) -> list[str]:
    """Several checkpoints side by side, below each other where the terminal is too narrow; nothing for one."""
    grid = grid_of(rows)
    if grid is None:
        return []
    wide = [
        {"reward of": name} | {model: score_text(grid.reward(name, model)) for model in grid.models}
        for name in grid.evaluations
    ]
    tall = [
        {"reward of": model} | {name: score_text(grid.reward(name, model)) for name in grid.evaluations}
        for model in grid.models
    ]
    lines = _laid_out([{printable(k): printable(v) for k, v in row.items()} for row in wide], set())
    if width is None or max(map(len, lines)) <= width:
        return ["", *lines]
    return ["", *_laid_out([{printable(k): printable(v) for k, v in row.items()} for row in tall], set())]


def cells_of(row: Row, s: Summary) -> Cells:
    """One evaluation's cells; what is zero or was not asked for is left out, and its column with it."""
    cells = {
        "evaluation": printable(s.name),
        "reward": score_text(s.headline),
        "95 %": _interval(s.headline),
        "n": str(s.n_items) if s.n_items == s.n_selected else f"{s.n_items}/{s.n_selected}",
        "k": str(s.n_samples),
    }
    largest = max((k for k in s.pass_at if k > 1), default=None)
    if largest is not None:
        cells[f"pass@{largest}"] = score_text(s.pass_at[largest])
        if largest in s.maj_at:
            cells[f"maj@{largest}"] = score_text(s.maj_at[largest])
    if s.cut:
        cells["truncated"] = str(s.cut)
    for status in (EpisodeStatus.EMPTY, EpisodeStatus.UNFINISHED_THINKING):
        if s.counts.get(status):
            cells[str(status).replace("_", " ")] = str(s.counts[status])
    if s.grader_faults:
        cells["grader faults"] = str(s.grader_faults)
    if s.errors:
        cells["errors"] = str(s.errors)
    wall_s = row.spans.total_s
    cells |= {
        "tokens in": count(s.input_tokens),
        "out": count(s.output_tokens),
        "tok/s": count(s.output_tokens / wall_s) if wall_s > 0 and s.output_tokens else "-",
        "wall": seconds(wall_s),
    }
    return cells


def columns_of(rows: Sequence[Cells]) -> list[str]:
    """The columns that any row has, in their order: what an evaluation cost is said last."""
    there = dict.fromkeys(name for row in rows for name in row)
    ends = [name for name in ("tokens in", "out", "tok/s", "wall") if name in there]
    return [*(name for name in there if name not in ends), *ends]


def notes_of(row: Row) -> list[str]:
    """What must not be overlooked: errors and faults, answers that were cut off, episodes that were given up."""
    notes, s = [], row.summary()
    if s.errors or s.grader_faults:
        parts = ", ".join(f"{number} {status}" for status, number in s.counts.items() if status.kind != "scored")
        only = f"; over the {s.scored} scored it is {s.reward_scored:.4f}" if s.reward_scored is not None else ""
        notes.append(
            f"{s.name}: {s.requested} episodes = {s.scored} scored + {s.grader_faults} grader faults + {s.errors} "
            f"errors ({parts}); those count 0 in the reward{only}"
        )
    shared = shared_reason(row.reasons)
    if shared:
        notes.append(f"{s.name}: {shared}")
    if s.truncation_rate and s.truncation_rate >= 0.01:
        over = f"; over the others the reward is {s.reward_completed:.4f}" if s.reward_completed is not None else ""
        notes.append(f"{s.name}: {s.truncation_rate:.1%} of the episodes were cut off at the token limit{over}")
    if s.cancelled:
        notes.append(f"{s.name}: {s.cancelled} episodes were given up and are in no number")
    return [printable(note) for note in notes]


def score_text(estimate: Estimate | None) -> str:
    """The value with its standard error."""
    if estimate is None:
        return "-"
    return f"{estimate.value:.4f}" if estimate.se is None else f"{estimate.value:.4f} ± {estimate.se:.4f}"


def _interval(estimate: Estimate | None) -> str:
    return "-" if estimate is None or estimate.ci is None else "{:.3f}–{:.3f}".format(*estimate.ci)


def _render(rows: Sequence[Cells], width: int | None) -> list[str]:
    """Lay the cells out; where a terminal is too narrow, the columns that matter least are left out."""
    dropped: set[str] = set()
    for candidate in ("", "tokens in", "tok/s", "out", "wall", "95 %"):
        dropped.add(candidate)
        lines = _laid_out(rows, dropped)
        if width is None or max(map(len, lines)) <= width:
            break
    return lines


def _laid_out(rows: Sequence[Cells], dropped: Set[str]) -> list[str]:
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), width=1000, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(_table(rows, dropped))
    return [line.rstrip() for line in captured.get().splitlines() if line.strip()]


def _table(rows: Sequence[Cells], dropped: Set[str]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns = [name for name in columns_of(rows) if name not in dropped]
    for name in columns:
        table.add_column(name, justify="left" if name == columns[0] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row.get(name, "")) for name in columns))
    return table
