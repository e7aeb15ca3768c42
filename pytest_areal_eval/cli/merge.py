"""``areal-eval merge``: the shards of a run become one run, with the numbers of a run that was never divided."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_areal_eval.cli.common import EXIT_INCONCLUSIVE, add_results_dir, load, pick, say, width


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "merge",
        help="make one run of several shards",
        description="Write a new run that holds the episodes of several, such as the shards 1/4 to 4/4, and decide its "
        "gates. The runs must agree in everything but the items. Exit status 1: a gate fails, or a shard is missing; "
        "17: a gate is inconclusive.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the runs' folders or names")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="the new folder (default: in --results-dir)")
    parser.add_argument("--baseline", metavar="RUN", help="what `baseline` means in the gates")
    add_results_dir(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Merge, print the table and the gates."""
    from pytest_areal_eval.report.merged import merge_runs
    from pytest_areal_eval.report.saved import read_run
    from pytest_areal_eval.report.table import summary_lines

    parts = [load(name, arguments.results_dir) for name in arguments.runs]
    for part in parts:
        pick(part, None)
    baseline = load(arguments.baseline, arguments.results_dir) if arguments.baseline else None
    where = arguments.output or arguments.results_dir
    path = merge_runs(parts, where, new=arguments.output is None, baseline=baseline)
    merged = read_run(path)
    for line in summary_lines(merged.rows, width()):
        say(line)
    for gate in merged.gates:
        say(f"gate {gate['outcome'].upper():<5} {gate['evaluation']}: {gate['message']}")
    for gap in merged.gaps:
        say(gap)
    say(f"run: {path}")
    outcomes = {gate["outcome"] for gate in merged.gates}
    if "fail" in outcomes or merged.info["missing"]:
        return 1
    return EXIT_INCONCLUSIVE if "inconclusive" in outcomes else 0
