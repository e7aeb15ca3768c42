"""``areal-eval calibrate``: thresholds measured from baseline runs, with where they are from."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.cli.common import add_results_dir, load, say
from pytest_areal_eval.errors import JournalError, UserError

if TYPE_CHECKING:
    from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun
    from pytest_areal_eval.stats.calibrate import Proposal


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "calibrate",
        help="propose gates from runs of a baseline checkpoint",
        description="Propose thresholds from two or more runs of one checkpoint on the same items with the same "
        "settings: as high as they can be without failing an unchanged checkpoint. Three to five runs are good.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the runs' folders or names")
    parser.add_argument(
        "--false-alarms",
        type=_share,
        default=0.01,
        metavar="P",
        help="share of unchanged runs that may fail (default: 0.01)",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write thresholds and provenance as JSON")
    add_results_dir(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a gate for each evaluation that all runs have."""
    from pytest_areal_eval.stats.calibrate import propose

    runs = [load(name, arguments.results_dir) for name in arguments.runs]
    _check(runs)
    proposals = {}
    for name in runs[0].evaluations:
        evaluations = [saved.evaluations[name] for saved in runs if name in saved.evaluations]
        ids = _shared(evaluations)
        if len(evaluations) < len(runs) or not ids:
            say(f"{name}: not in all of the runs")
            continue
        rewards = [[[e.counted_reward for e in evaluation.episodes[i]] for i in ids] for evaluation in evaluations]
        proposals[name] = propose(rewards, false_alarms=arguments.false_alarms)
        _say(name, proposals[name])
    if not proposals:
        raise UserError("there is no evaluation that all of the runs have", "Give runs of the same evaluations.")
    if arguments.output is not None:
        _write(arguments.output, runs, proposals)
        say(f"\nprovenance: {arguments.output}")
    return 0


def _check(runs: Sequence[SavedRun]) -> None:
    from pytest_areal_eval.report.comparison import compare_runs
    from pytest_areal_eval.report.saved import digests_of

    if len(runs) < 2:
        raise UserError(
            "one run tells nothing about noise", "Run the baseline two times or more; three to five are good."
        )
    twice = [run.name for number, run in enumerate(runs) if run.path in [other.path for other in runs[:number]]]
    if twice:
        raise UserError(f"{twice[0]} is given twice: a run does not differ from itself", "Give different runs.")
    for other in runs[1:]:
        digests = [sorted(digests_of(run.info)) for run in (runs[0], other)]
        differs = [] if digests[0] == digests[1] else ["checkpoint: the weights differ"]
        differs += [text for c in compare_runs(runs[0], other) for text in c.differs]
        if differs:
            raise UserError(
                f"{runs[0].name} and {other.name} are no runs of the same thing: {'; '.join(differs)}",
                "Calibrate from runs of one checkpoint with the same data, prompts, sampling and grading.",
            )


def _shared(evaluations: Sequence[SavedEvaluation]) -> list[str]:
    return [i for i in evaluations[0].episodes if all(i in e.episodes for e in evaluations)]


def _say(name: str, p: Proposal) -> None:
    values = " ".join(f"{value:.4f}" for value in p.values)
    say(f"\n{name}: {len(p.values)} runs of {p.n} items: {values}; mean {p.mean:.4f}, run-to-run sd {p.noise:.4f}")
    if p.source == "runs":
        say("  the runs vary more than their items explain by themselves: something shakes whole runs")
    if not p.useful:
        say(f"  no threshold: {len(p.values)} such runs would let every checkpoint pass; give more runs")
        return
    say(f'  gates=["reward >= {p.threshold:.4f}"]')
    say(f"  fails {p.false_alarms:.1%} of unchanged runs; finds a true drop of {p.mde:.4f} with 80 % power")


def _write(path: Path, runs: Sequence[SavedRun], proposals: dict[str, Proposal]) -> None:
    from dataclasses import asdict

    content = {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "gates": {name: f"reward >= {p.threshold:.4f}" for name, p in proposals.items() if p.useful},
        "evaluations": {
            name: asdict(p) | {k: v for k, v in runs[0].evaluations[name].described.items() if k != "summary"}
            for name, p in proposals.items()
        },
        "runs": [
            {"run": r.name} | {k: r.info.get(k) for k in ("command_line", "models", "versions", "git", "finished_at")}
            for r in runs
        ],
    }
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}", "Give another file: --output=FILE") from error


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 0.5")
    return value
