"""Statistics in AReaL's shapes: the flat dict with counts, and its table, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_areal_eval.stats.summary import Summary


def tabulate_stats(data: Mapping[str, Any], col: int = 4, floatfmt: str = ".4e") -> str:
    """Lay names and values out in ``col`` pairs of columns, filled from top to bottom.

    Args:
        data: what ``export_stats`` returns; an empty mapping gives an empty string.
        col: number of name/value pairs side by side.
        floatfmt: format of the numbers.

    Raises:
        ValueError: ``col`` is below 1.
    """
    from tabulate import tabulate

    if col < 1:
        raise ValueError(f"tabulate_stats needs at least one column, got col={col}")
    pairs = list(data.items())
    n_rows = -(-len(pairs) // col)
    rows = [[cell for pair in pairs[row::n_rows] for cell in pair] for row in range(n_rows)]
    return tabulate(rows, floatfmt=floatfmt, tablefmt="fancy_grid")


def as_areal_stats(summary: Summary, scope: str = "eval-rollout") -> dict[str, float]:
    """The summary as AReaL's flat dict: ``scope/key`` with its ``scope/key__count``, what has no value left out.

    Counts are numbers of episodes, so that AReaL's merge, the mean weighted by count, gives the mean over both runs.
    """
    estimates = {"reward": summary.headline, "reward_scored": summary.scored_only}
    estimates |= {f"pass@{k}": e for k, e in summary.pass_at.items()}
    estimates |= {f"maj@{k}": e for k, e in summary.maj_at.items()}
    values = {name: (e.value, e.count) for name, e in estimates.items() if e}
    for rate in ("error_rate", "fault_rate", "truncation_rate", "empty_rate"):
        if summary.requested:
            values[rate] = (getattr(summary, rate), summary.requested)
    if summary.mean_output_tokens is not None:
        values["output_tokens"] = (summary.mean_output_tokens, summary.requested - summary.errors)
    values = {name: (e.value, e.count) for name, e in summary.metrics.items()} | values
    return {
        f"{scope}/{key}": number
        for name, (value, count) in values.items()
        for key, number in ((name, value), (f"{name}__count", count))
    }
