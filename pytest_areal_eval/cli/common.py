"""What the subcommands share: their RUN arguments, and how tables and foreign text reach the terminal."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_areal_eval.options.declarations import RESULTS_DIR
from pytest_areal_eval.report.text import printable

if TYPE_CHECKING:
    from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun

EXIT_INCONCLUSIVE = 17


def add_results_dir(parser: argparse.ArgumentParser) -> None:
    """``--results-dir``."""
    parser.add_argument(
        "--results-dir",
        type=Path,
        default=Path(RESULTS_DIR),
        metavar="DIR",
        help="where runs are (default: %(default)s)",
    )


def add_run(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """A positional RUN, the newest one where it may be left out."""
    note = "" if required else "; default: the newest"
    nargs = None if required else "?"
    parser.add_argument("run_name", metavar="RUN", nargs=nargs, default="latest", help=f"a run's folder or name{note}")
    add_results_dir(parser)


def load(name: str, results_dir: Path) -> SavedRun:
    """Find and read a run; what its journal lost is said on stderr."""
    from pytest_areal_eval.report.saved import find_run, read_run

    run = read_run(find_run(name, results_dir))
    for problem in run.problems[:5]:
        print(printable(f"areal-eval: {problem}"), file=sys.stderr)
    if len(run.problems) > 5:
        print(f"areal-eval: and {len(run.problems) - 5} more lines that are no episodes", file=sys.stderr)
    return run


def pick(run: SavedRun, name: str | None) -> list[SavedEvaluation]:
    """The evaluation of that name, or all that have results.

    Raises:
        UserError: there is none.
    """
    from pytest_areal_eval.errors import UserError

    known = {e.name: e for e in run.evaluations.values() if e.row.results}
    if name is not None and name not in known:
        raise UserError(f"{run.name} has no results of {name!r}", f"It has: {', '.join(known) or 'none'}.")
    if not known:
        raise UserError(
            f"{run.name} has no item with all of its episodes", "pytest may still be at it, or ended early."
        )
    return [known[name]] if name is not None else list(known.values())


def number_of_lines(text: str) -> int:
    """A number of rows to list, as an argument.

    Raises:
        argparse.ArgumentTypeError: it is no whole number from 0 on.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def width() -> int | None:
    """Columns of the terminal; None where stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str = "") -> None:
    """Print foreign text without what could steer a terminal; a surrogate that no encoding has becomes a ``?``."""
    print("\n".join(printable(line) for line in text.split("\n")).encode("utf-8", "replace").decode())


def say_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print columns that line up; those named in ``right`` are numbers."""
    cells = [[printable(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        padded = [
            cell.rjust(size) if name in right else cell.ljust(size)
            for name, cell, size in zip(columns, row, widths, strict=True)
        ]
        say("  ".join(padded).rstrip())
