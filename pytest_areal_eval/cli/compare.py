"""``areal-eval compare``: is the second run better than the first, worse, or can nobody tell?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.cli.common import EXIT_INCONCLUSIVE, add_results_dir, load, number_of_lines, say, say_table
from pytest_areal_eval.report.text import items_are, printable

if TYPE_CHECKING:
    from pytest_areal_eval.report.comparison import Comparison
    from pytest_areal_eval.report.saved import SavedRun
    from pytest_areal_eval.stats import Verdict


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="hold a run against a baseline, item by item",
        description="Print the paired difference of two runs, its interval and p-value, and the items that changed. "
        "Exit status 1: data, prompts, sampling or grading differ, so that no checkpoints are compared, or a gate "
        "fails; 17: a gate is inconclusive.",
    )
    parser.add_argument("baseline", metavar="BASELINE", help="the run to compare with")
    parser.add_argument("run_name", metavar="RUN", nargs="?", default="latest", help="default: the newest")
    parser.add_argument("--evaluation", metavar="NAME", help="only this one of RUN")
    parser.add_argument("--against", metavar="NAME", help="its name in BASELINE, where that is another")
    parser.add_argument(
        "--flips", type=number_of_lines, default=10, metavar="N", help="changed items to list (default: %(default)s)"
    )
    parser.add_argument(
        "--gate", action="append", default=[], metavar="[NAME:]COND", help="decide, such as 'reward >= baseline - 0.01'"
    )
    parser.add_argument("--gate-policy", choices=("point", "interval"), default="interval", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_results_dir(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison of every evaluation that both have."""
    from pytest_areal_eval.report.comparison import compare_runs

    before = load(arguments.baseline, arguments.results_dir)
    after = load(arguments.run_name, arguments.results_dir)
    wanted, against = arguments.evaluation, arguments.against
    comparisons = compare_runs(before, after, (against or wanted, wanted or against) if wanted or against else None)
    verdicts = list(_decide(before, after, comparisons, arguments))
    if arguments.json:
        print(json.dumps([asdict(c) for c in comparisons], indent=2))
    else:
        say(f"{before.name} → {after.name}")
        for comparison in comparisons:
            _say(comparison, arguments.flips)
    for name, verdict in verdicts:
        line = printable(f"gate {verdict.outcome.upper():<5} {name}: {verdict.message}")
        print(line, file=sys.stderr if arguments.json else None)
    outcomes = [verdict.outcome for _, verdict in verdicts]
    if "fail" in outcomes or any(c.differs for c in comparisons):
        return 1
    return EXIT_INCONCLUSIVE if "inconclusive" in outcomes else 0


def _decide(
    before: SavedRun, after: SavedRun, comparisons: Sequence[Comparison], arguments: argparse.Namespace
) -> Iterator[tuple[str, Verdict]]:
    """Decide the gates that were given, by evaluation, and refuse one that names none that is compared."""
    from pytest_areal_eval.errors import UserError
    from pytest_areal_eval.report.comparison import baseline_of
    from pytest_areal_eval.report.scoreboard import names_of
    from pytest_areal_eval.stats import decide, split_gate_option

    compared = {c.name: c.baseline_name for c in comparisons}
    for name, gate in map(split_gate_option, arguments.gate):
        names = [known for known in compared if name == "*" or name in names_of(known)]
        if not names:
            raise UserError(
                f"--gate={name}:{gate}: no compared evaluation is named {name!r}", f"There are: {', '.join(compared)}."
            )
        for known in names:
            mine, theirs = before.evaluations[compared[known]], after.evaluations[known]
            row = replace(theirs.row, gates=[gate])
            reference, partial = baseline_of(mine.row, row, before.name), row.partial_reason()
            policy = arguments.gate_policy
            yield known, decide(gate, row.summary(), partial_reason=partial, policy=policy, baseline=reference)


def _say(c: Comparison, limit: int) -> None:
    from pytest_areal_eval.report.comparison import p_text
    from pytest_areal_eval.stats.power import minimal_detectable_effect, spread

    p = c.paired
    name = c.name if c.name == c.baseline_name else f"{c.baseline_name} → {c.name}"
    say(f"\n{name}: {p.baseline:.4f} → {p.candidate:.4f} over {p.difference.n} shared items")
    if c.differs:
        say("  NOT A COMPARISON OF CHECKPOINTS, other things differ:")
    for text in [*c.differs, *c.remarks]:
        say(f"  - {text}")
    interval = "unknown" if p.difference.ci is None else "[{:+.4f}, {:+.4f}]".format(*p.difference.ci)
    say(f"  difference {p.difference.value:+.4f}, 95 % interval {interval}, p = {p_text(p.p_value)} ({p.test})")
    se = spread(p.difference)
    mde = (
        ""
        if se is None
        else f"; these runs find a true difference of {minimal_detectable_effect(se):.4f} with 80 % power"
    )
    say(f"  {_word(c)}: {p.better} items better, {p.worse} worse{mde}")
    for which, ids in (("baseline", c.only_before), ("second run", c.only_after)):
        if ids:
            say(f"  {items_are(len(ids))} in the {which} alone and not compared: {', '.join(ids[:3])}")
    rows = [
        [f.item_id, f"{f.before:g} → {f.after:g}", f.answer_before, f.answer_after, f.gold] for f in c.flips[:limit]
    ]
    if rows:
        say()
        say_table(("item", "reward", "before", "after", "gold"), rows)
    if len(c.flips) > limit:
        say(f"and {len(c.flips) - limit} more: --flips={len(c.flips)}")


def _word(c: Comparison) -> str:
    ci = c.paired.difference.ci
    if ci is None or ci[0] <= 0.0 <= ci[1]:
        return "no difference shown"
    return "better" if ci[0] > 0.0 else "worse"
