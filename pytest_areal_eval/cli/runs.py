"""``areal-eval runs``: what there is, newest last."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_areal_eval.cli.common import add_results_dir, say, say_table
from pytest_areal_eval.errors import JournalError

COLUMNS = ("run", "started", "state", "model", "evaluation", "reward", "n", "k")


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("runs", help="list the runs", description="List the runs, newest last.")
    add_results_dir(parser)
    parser.add_argument("-n", "--last", type=int, default=20, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print them; only each ``run.json`` is read."""
    from pytest_areal_eval.journal import RunFolder
    from pytest_areal_eval.report.saved import list_runs

    paths = list_runs(arguments.results_dir)
    if not paths:
        say(f"no runs in {arguments.results_dir}; they are made by: pytest evals/ --model=CHECKPOINT")
        return 0
    lines: list[list[str]] = []
    for path in paths[-max(arguments.last, 1) :]:
        try:
            info = RunFolder(path).read_run()
        except JournalError as error:
            lines.append([path.name, "", "unreadable", "", str(error.args[0]), "", "", ""])
            continue
        lines += _lines(path, info)
    if arguments.json:
        for line in lines:
            print(json.dumps(dict(zip(COLUMNS, line, strict=True))))
    else:
        say_table(COLUMNS, lines, right=("n", "k"))
    return 0


def _lines(path: Path, info: Mapping[str, Any]) -> list[list[str]]:
    from pytest_areal_eval.report.saved import models_of

    started = datetime.fromtimestamp(float(info.get("started_at", 0.0))).strftime("%Y-%m-%d %H:%M")
    models = ", ".join(Path(name).name for name in models_of(info)) or "-"
    first = [path.name, started, _state(path, info), models]
    rows = [
        _evaluation(name, described.get("summary"), described)
        for name, described in info.get("evaluations", {}).items()
    ]
    return [
        [*(first if number == 0 else ["", "", "", ""]), *row] for number, row in enumerate(rows or [["-", "-", "", ""]])
    ]


def _evaluation(name: str, summary: Mapping[str, Any] | None, described: Mapping[str, Any]) -> list[str]:
    if summary is None:
        return [name, "-", "", str(described.get("n_samples", ""))]
    headline = summary.get("headline")
    reward = "-" if headline is None else f"{headline['value']:.4f}"
    if headline is not None and headline["se"] is not None:
        reward += f" ± {headline['se']:.4f}"
    return [name, reward, str(summary["n_items"]), str(summary["n_samples"])]


def _state(path: Path, info: Mapping[str, Any]) -> str:
    from pytest_areal_eval.journal.lock import held_by

    if info.get("status") == "started":
        return "running" if held_by(path) else "ended early"
    return f"exit {info.get('exit_status', '?')}" if info.get("status") == "finished" else "incomplete"
