"""A run's episodes as one flat table, a row for each: CSV, or parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.errors import ConfigError, JournalError
from pytest_areal_eval.report.saved import SavedRun

_FIELDS = (
    "evaluation", "item_id", "index", "status", "reward", "extracted", "gold", "stop_reason", "input_tokens",
    "output_tokens", "requests", "attempts", "latency_s", "started_at", "replica", "seed", "prompt", "completion",
    "reasoning", "error",
)  # fmt: skip
_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\.?\d[\d.,]*(?:[eE][+-]?\d+)?%?\Z)")
"""What a spreadsheet would compute: after a sign anything but one whole number, ``-2+3+cmd|...`` too."""


def write_csv(run: SavedRun, path: Path) -> None:
    """Write the episodes as CSV; a cell that a spreadsheet would take for a formula gets an apostrophe in front.

    Raises:
        JournalError: the file cannot be written.
    """
    names = _names(run)
    try:
        with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows([_cell(row.get(name)) for name in names] for row in rows(run))
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}", "Give another file: --csv=FILE") from error


def write_parquet(run: SavedRun, path: Path) -> None:
    """Write the episodes as parquet.

    Raises:
        ConfigError: pyarrow is not installed.
        JournalError: the file cannot be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError("--parquet needs pyarrow, which is not installed", "pip install pyarrow") from None
    names, all_rows = _names(run), list(rows(run))
    columns = {name: _column([row.get(name) for row in all_rows]) for name in names}
    try:
        pq.write_table(pa.table(columns), path, compression="zstd")
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}", "Give another file: --parquet=FILE") from error


def rows(run: SavedRun) -> Iterator[dict[str, Any]]:
    """A flat dict for each episode: its checkpoint, its fields, ``metric.NAME`` and ``column.NAME``."""
    for evaluation in run.evaluations.values():
        model = str(evaluation.described.get("model") or "") or ", ".join(run.models)
        for item_id, episodes in evaluation.episodes.items():
            columns = evaluation.items[item_id].columns if item_id in evaluation.items else {}
            labels = {f"column.{name}": value for name, value in columns.items()}
            for episode in episodes:
                yield {"model": model} | _row(episode) | labels


def _row(episode: Episode) -> dict[str, Any]:
    fields = {name: getattr(episode, name) for name in _FIELDS} | {"status": episode.status.value}
    return fields | {f"metric.{name}": value for name, value in episode.metrics.items()}


def _names(run: SavedRun) -> list[str]:
    return list(dict.fromkeys(["evaluation", "model", *_FIELDS, *(name for row in rows(run) for name in row)]))


def _cell(value: Any) -> Any:
    if isinstance(value, str) and _FORMULA.match(value):
        return f"'{value}"
    return value


def _column(values: Sequence[Any]) -> list[Any]:
    """Of one type, as parquet wants it: text where values are of several; a lone surrogate becomes a question mark."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or (len(kinds) == 1 and kinds != {str}):
        return list(values)
    return [None if value is None else str(value).encode("utf-8", "replace").decode() for value in values]
