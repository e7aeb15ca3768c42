"""The session's statistics in AReaL's shape: one dictionary, its file in the run's folder, its table.

Invariant: it is made of the results that reports carried, as the scoreboard's rows are, so workers of xdist, replicas
and a resumed run's first part are all in it.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.report.text import printable
from pytest_areal_eval.stats import EpisodeResult
from pytest_areal_eval.stats.areal import own_stats, session_stats
from pytest_areal_eval.stats.tabulate_stats import fitting_table

NAME = "stats.json"
WIDE = 120
"""Columns where there is no terminal."""


def export_stats(rows: Sequence[Row]) -> dict[str, float]:
    """The dictionary."""
    return session_stats(_episodes(rows))


def stats_json(rows: Sequence[Row]) -> str:
    """The dictionary as strict JSON: what is not finite is null."""
    strict = {key: value if math.isfinite(value) else None for key, value in export_stats(rows).items()}
    return json.dumps(strict, indent=2)


def write_stats(folder: Path, rows: Sequence[Row]) -> None:
    """Write it beside the journal, for tools that read AReaL's."""
    (folder / NAME).write_text(stats_json(rows) + "\n", encoding="utf-8")


def stats_lines(rows: Sequence[Row], width: int | None, *, whole: bool) -> list[str]:
    """AReaL's table of it.

    Args:
        rows: the evaluations.
        width: of the terminal, in columns; None where there is none.
        whole: everything; else what workflows recorded themselves, since the summary has the rest.
    """
    episodes = _episodes(rows)
    shown = session_stats(episodes) if whole else own_stats(e for found in episodes.values() for e in found)
    return fitting_table({printable(key): value for key, value in shown.items()}, width or WIDE)


def _episodes(rows: Sequence[Row]) -> Mapping[str, Sequence[EpisodeResult]]:
    found: dict[str, list[EpisodeResult]] = defaultdict(list)
    for row in rows:
        for item in row.results.values():
            found[row.name] += item.episodes
    return found
