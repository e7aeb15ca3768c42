"""``areal-eval report``: a run in the formats that people and other tools read."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.cli.common import add_run, load, pick, say
from pytest_areal_eval.errors import ConfigError, JournalError
from pytest_areal_eval.report.export import GITHUB_SUMMARY

if TYPE_CHECKING:
    from pytest_areal_eval.report.saved import SavedRun


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "report",
        help="write a run as HTML, Inspect log, lm-eval JSON, CSV, parquet or Markdown",
        description="Write a run in other formats; where none is named, RUN/report.html.",
    )
    add_run(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="one self-contained page")
    parser.add_argument("--inspect", type=Path, metavar="DIR", help="logs that `inspect view --log-dir DIR` opens")
    parser.add_argument(
        "--lm-eval", type=Path, metavar="DIR", help="results and samples as lm-evaluation-harness writes them"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="one row an episode")
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="the same, typed and compressed; needs pyarrow")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the summary for a pull request; - for stdout")
    parser.add_argument("--github-summary", action="store_true", help=f"append the summary to ${GITHUB_SUMMARY}")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write what was asked for, and say where it is."""
    saved = load(arguments.run_name, arguments.results_dir)
    pick(saved, None)
    written = _write(saved, arguments)
    if arguments.markdown != Path("-"):
        for path in written:
            say(str(path))
    return 0


def _write(saved: SavedRun, arguments: argparse.Namespace) -> list[Path]:
    from pytest_areal_eval.report.export.html import write_html
    from pytest_areal_eval.report.export.inspect_log import write_inspect_logs
    from pytest_areal_eval.report.export.lm_eval import write_lm_eval
    from pytest_areal_eval.report.export.table import write_csv, write_parquet

    written: list[Path] = []
    for folder, many in ((arguments.inspect, write_inspect_logs), (arguments.lm_eval, write_lm_eval)):
        if folder is not None:
            written += many(saved, folder)
    for path, one in ((arguments.html, write_html), (arguments.csv, write_csv), (arguments.parquet, write_parquet)):
        if path is not None:
            one(saved, path)
            written.append(path)
    said = _write_markdown(saved, arguments, written)
    if not written and not said:
        written.append(saved.path / "report.html")
        write_html(saved, written[0])
    return written


def _write_markdown(saved: SavedRun, arguments: argparse.Namespace, written: list[Path]) -> bool:
    """Write the Markdown summary to stdout, a file or the CI's page; whether any was asked for."""
    from pytest_areal_eval.report.export.markdown import markdown

    targets: list[Path] = []
    if arguments.github_summary:
        if not os.environ.get(GITHUB_SUMMARY):
            raise ConfigError(
                f"--github-summary: ${GITHUB_SUMMARY} is not set", "GitHub's runners set it; else use --markdown=FILE."
            )
        targets.append(Path(os.environ[GITHUB_SUMMARY]))
    if arguments.markdown == Path("-"):
        print(markdown(saved), end="")
    elif arguments.markdown is not None:
        targets.append(arguments.markdown)
    for path in targets:
        try:
            with path.open("a" if path != arguments.markdown else "w", encoding="utf-8", errors="replace") as file:
                file.write(markdown(saved))
        except OSError as error:
            raise JournalError(
                f"cannot write {path}: {error.strerror}", "Give another file: --markdown=FILE"
            ) from error
        written.append(path)
    return bool(arguments.github_summary or arguments.markdown)
