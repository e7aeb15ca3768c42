"""What a run knows of its items beside their episodes: a content hash and the short columns of each record.

Invariant: ``items.jsonl`` is written once, before the first episode; a run without it is read all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal.identity import item_hash
from pytest_areal_eval.journal.record import SCHEMA, decode_line, encode_line

ITEM = "item"
LONGEST_TEXT = 80
"""Characters of a column's text that is kept; longer ones are prompts and solutions, not labels."""

Column = str | int | float | bool


@dataclass(frozen=True)
class SavedItem:
    """One record as the run's folder knows it.

    Attributes:
        hash: of the record's content.
        columns: its short fields by name, such as ``level`` and ``family``.
    """

    hash: str
    columns: Mapping[str, Column] = field(default_factory=dict)


def write_items(
    folder: Path, evaluation: str, items: Sequence[tuple[str, Mapping[str, Any]]], *, writer: str = ""
) -> None:
    """Append an evaluation's items to the run's folder.

    Args:
        folder: the run's.
        evaluation: its name.
        items: ids with their records, in the order of the dataset.
        writer: a name that is this process's alone, where several write.

    Raises:
        JournalError: the file cannot be written.
    """
    path = folder / (f"items.{writer}.jsonl" if writer else "items.jsonl")
    labels = _labels([record for _, record in items])
    lines = (encode_line(_line(evaluation, item_id, record, labels)) for item_id, record in items)
    try:
        with path.open("ab") as file:
            file.writelines(lines)
    except OSError as error:
        raise JournalError(
            f"cannot write {path}: {error.strerror}", "Free some space, or: --results-dir=PATH"
        ) from error


def read_items(folder: Path) -> dict[tuple[str, str], SavedItem]:
    """Every item by (evaluation, item id); empty where the run has no such file."""
    return {key: item for path in sorted(folder.glob("items*.jsonl")) for key, item in _read(path)}


def copy_items(source: Path, target: Path) -> None:
    """Append another run's items to a run's folder."""
    with (target / "items.jsonl").open("ab") as file:
        for path in sorted(source.glob("items*.jsonl")):
            file.write(path.read_bytes())


def _labels(records: Sequence[Mapping[str, Any]]) -> Set[str]:
    """The columns that are labels in every record: a question is none because it happens to be short."""
    no_labels = {name for record in records for name, value in record.items() if not _is_label(value)}
    return {name for record in records for name in record} - no_labels - {"id"}


def _line(evaluation: str, item_id: str, record: Mapping[str, Any], labels: Set[str]) -> dict[str, Any]:
    columns = {name: value for name, value in record.items() if name in labels and value is not None}
    digest = item_hash(record)
    return {"v": SCHEMA, "kind": ITEM, "evaluation": evaluation, "item_id": item_id, "hash": digest, "columns": columns}


def _is_label(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) or (isinstance(value, str) and len(value) <= LONGEST_TEXT and "\n" not in value)


def _read(path: Path) -> Iterator[tuple[tuple[str, str], SavedItem]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    for line in lines:
        try:
            record = decode_line(line)
            yield (record["evaluation"], record["item_id"]), SavedItem(record["hash"], dict(record["columns"]))
        except (ValueError, KeyError, TypeError):
            continue  # a torn line: the item's columns are unknown, its episodes are not
