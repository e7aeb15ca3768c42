"""What a run's episodes add up to: results, estimators, one summary per evaluation, gates, and AReaL's tracker.

Invariant: every number is a function of :class:`ItemResult` objects alone, so that a run that was resumed or spread
over workers gives the same numbers as one that was not.
"""

from __future__ import annotations

from pytest_areal_eval.stats.estimators import Estimate
from pytest_areal_eval.stats.gates import Gate, parse_gate, split_gate_option
from pytest_areal_eval.stats.results import EpisodeResult, ItemResult
from pytest_areal_eval.stats.summary import Summary, summarize
from pytest_areal_eval.stats.tabulate_stats import tabulate_stats
from pytest_areal_eval.stats.tracker import ReduceType, StatsTracker, Trackers
from pytest_areal_eval.stats.verdicts import Baseline, Verdict, decide, undecided

__all__ = [
    "Baseline",
    "EpisodeResult",
    "Estimate",
    "Gate",
    "ItemResult",
    "ReduceType",
    "StatsTracker",
    "Summary",
    "Trackers",
    "Verdict",
    "decide",
    "parse_gate",
    "split_gate_option",
    "summarize",
    "tabulate_stats",
    "undecided",
]
