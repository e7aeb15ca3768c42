"""``areal-eval report``: a run in the formats that people and other tools read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.cli.common import add_run, load, pick, say

if TYPE_CHECKING:
    pass


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "report",
        help="write a run as HTML, Inspect log, lm-eval JSON, CSV, parquet or Markdown",
        description="Write a run in other formats; without any of them, RUN/report.html.",
    )
    add_run(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="one self-contained page")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write what was asked for."""
    from pytest_areal_eval.report.export.html import write_html

    saved = load(arguments.run_name, arguments.results_dir)
    pick(saved, None)
    target = arguments.html or saved.path / "report.html"
    write_html(saved, target)
    say(f"{target}")
    return 0
