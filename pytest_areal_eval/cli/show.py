"""``areal-eval show``: a run's table and gates again, or everything that is known of one item."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.cli.common import add_run, load, number_of_lines, pick, say, say_table, width
from pytest_areal_eval.report.stats import stats_json, stats_lines
from pytest_areal_eval.report.text import answer_of
from pytest_areal_eval.report.transcript import turns_of

if TYPE_CHECKING:
    from pytest_areal_eval.api import Episode
    from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun

FAILING_SHOWN = 5
"""Missed items that are listed where a gate did not hold: what was extracted often says more than the score."""


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "show", help="print a run's table, or one item", description="Print a run's table and gates, or its items."
    )
    add_run(parser)
    parser.add_argument("--evaluation", metavar="NAME", help="only this one")
    parser.add_argument("--item", metavar="ID", help="everything about one item")
    parser.add_argument(
        "--missed", type=number_of_lines, nargs="?", const=20, metavar="N", help="list items below the pass mark"
    )
    parser.add_argument("--stats", action="store_true", help="print AReaL's dictionary of statistics, whole")
    parser.add_argument("--json", action="store_true", help="print the summaries as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for."""
    saved = load(arguments.run_name, arguments.results_dir)
    evaluations = pick(saved, arguments.evaluation)
    if arguments.json and arguments.stats:
        print(stats_json([e.row for e in evaluations]))
    elif arguments.stats:
        _show_stats(evaluations, whole=True)
    elif arguments.json:
        print(json.dumps({e.name: e.row.summary().to_dict() for e in evaluations}, indent=2))
    elif arguments.item is not None:
        _show_item(saved, evaluations, arguments.item)
    else:
        _show_table(saved, evaluations)
        failing = [e for e in evaluations if e.name in _failed(saved)]
        if arguments.missed is not None:
            _show_missed(evaluations, arguments.missed)
        elif failing:
            _show_missed(failing, FAILING_SHOWN)
    return 0


def _failed(saved: SavedRun) -> set[str]:
    """Evaluations whose gates did not hold."""
    return {gate["evaluation"] for gate in saved.info.get("gates", []) if gate["outcome"] in ("fail", "inconclusive")}


def _show_table(saved: SavedRun, evaluations: Sequence[SavedEvaluation]) -> None:
    from pytest_areal_eval.report.table import summary_lines

    say(f"{saved.name}: {', '.join(saved.models) or 'no model'}")
    for e in evaluations:
        say(f"  {e.name}: {e.setup}")
    for line in summary_lines([e.row for e in evaluations], width()):
        say(line)
    _show_stats(evaluations, whole=False)
    names = {e.name for e in evaluations}
    for gate in saved.gates:
        if gate["evaluation"] in names:
            say(f"gate {gate['outcome'].upper():<5} {gate['evaluation']}: {gate['message']}")
    for gap in saved.gaps:
        say(gap)


def _show_stats(evaluations: Sequence[SavedEvaluation], *, whole: bool) -> None:
    for line in stats_lines([e.row for e in evaluations], width(), whole=whole):
        say(line)


def _show_missed(evaluations: Sequence[SavedEvaluation], limit: int) -> None:
    for e in evaluations:
        missed = [item for item in e.row.results.values() if (item.reward or 0.0) < e.row.pass_mark]
        say(f"\n{e.name}: {len(missed)} of {len(e.row.results)} items are below the pass mark {e.row.pass_mark:g}")
        rows = []
        for item in missed[:limit]:
            worst = min(e.episodes[item.item_id], key=lambda episode: episode.counted_reward)
            rows.append([item.item_id, f"{item.reward:.3f}", worst.status.value, answer_of(worst), worst.gold or ""])
        if rows:
            say_table(("item", "reward", "status", "answer", "gold"), rows, right=("reward",))
        if len(missed) > limit:
            say(f"and {len(missed) - limit} more: --missed={len(missed)}")


def _show_item(saved: SavedRun, evaluations: Sequence[SavedEvaluation], item_id: str) -> None:
    from pytest_areal_eval.errors import UserError

    found = [e for e in evaluations if item_id in e.episodes]
    if not found:
        close = [name for e in evaluations for name in e.episodes if item_id in name][:5]
        hint = f"There are: {', '.join(close)}." if close else "areal-eval show RUN --missed lists ids."
        raise UserError(f"{saved.name} has no item {item_id!r}", hint)
    for e in found:
        say(f"{e.name}[{item_id}]: reward {e.row.results[item_id].reward:.4f}")
        columns = e.items[item_id].columns if item_id in e.items else {}
        if columns:
            say("  ".join(f"{name}={value}" for name, value in columns.items()))
        say(f"\n--- prompt ---\n{e.episodes[item_id][0].prompt}")
        for episode in e.episodes[item_id]:
            _show_episode(episode)


def _show_episode(e: Episode) -> None:
    reward = "none" if e.reward is None else f"{e.reward:g}"
    say(
        f"\n--- episode {e.index}: {e.status}, reward {reward}, {e.output_tokens} tokens, {e.latency_s:.2f} s, "
        f"stopped by {e.stop_reason or 'nothing'} ---"
    )
    for turn in turns_of(e):
        say(f"[{turn.role}] {turn.text}".rstrip())
        for call in turn.calls:
            say(f"  → {call.name}({call.arguments})")
    if e.transcript:
        say("[last answer]")
    if e.reasoning:
        say(f"[reasoning]\n{e.reasoning}\n[answer]")
    say(e.completion)
    if e.extracted is not None or e.gold is not None:
        say(f"extracted: {e.extracted}   gold: {e.gold}")
    for name, value in e.metrics.items():
        say(f"{name}: {value:g}")
    if e.error:
        say(f"error: {e.error}")
    if e.traceback:
        say(e.traceback)
