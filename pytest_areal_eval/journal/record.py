"""An episode as one line of JSON, and back.

Invariant: a line is whole or worthless.  It holds no newline but its last byte, no NaN and no infinity, and carries the
schema's version ``v`` and its ``kind``; fields that a reader does not know are ignored, so optional fields may be added
without a new version.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_areal_eval.api import Episode, EpisodeStatus
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.stats.cells import Cell

SCHEMA = 1
"""Raised only when an older reader would misread a line."""

EPISODE = "episode"
"""The ``kind`` of a finished episode's line."""

EpisodeKey = tuple[str, str, int]
"""(evaluation, item id, index): what the last write wins for."""

_FIELDS = tuple(field.name for field in dataclasses.fields(Episode))
_FLOATS = ("latency_s", "started_at")


def episode_to_dict(episode: Episode, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The line's content: ``v``, ``kind``, ``at`` (Unix time of writing), the episode's fields, and ``extra``.

    Args:
        episode: what to write.
        extra: further JSON values that belong to the line but not to the episode (a prompt's hash).
    """
    record: dict[str, Any] = {"v": SCHEMA, "kind": EPISODE, "at": round(time.time(), 3)}
    for name in _FIELDS:
        record[name] = getattr(episode, name)
    record["metrics"] = dict(episode.metrics)
    for name in ("metrics", "transcript", "stats"):  # most workflows have none
        if not record[name]:
            del record[name]
    if extra:
        record["extra"] = dict(extra)
    return record


def episode_from_dict(record: Mapping[str, Any]) -> Episode:
    """The episode that a line holds; fields missing from it get their defaults.

    Raises:
        JournalError: the key, the status or a number is not what the schema says.
    """
    fields = {name: record[name] for name in _FIELDS if name in record}
    item_id, index = fields.get("item_id"), fields.get("index", 0)
    if not isinstance(item_id, str) or not isinstance(fields.get("evaluation", ""), str):
        raise JournalError(f"a journal line names no item: item_id is {item_id!r}")
    if type(index) is not int or index < 0:
        raise JournalError(f"item {item_id!r}: index is {index!r}, not a count from 0")
    try:
        fields["status"] = EpisodeStatus(fields.get("status", ""))
        if fields.get("reward") is not None:
            fields["reward"] = _finite(fields["reward"])
        metrics = fields.get("metrics", {})
        fields["metrics"] = {name: _finite(value) for name, value in metrics.items()}
        fields["transcript"] = tuple(fields.get("transcript", ()))
        fields["stats"] = {name: Cell.read(cell).state() for name, cell in fields.get("stats", {}).items()}
        for name in _FLOATS:
            fields[name] = _finite(fields.get(name, 0.0))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise JournalError(f"item {item_id!r}, episode {index}: {error}") from None
    return Episode(**fields)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no finite number")
    return float(value)


# A lone surrogate is no UTF-8, and U+0085, U+2028 and U+2029 end a line for str.splitlines().
_NEEDS_ESCAPES = re.compile("[\x85\u2028\u2029\ud800-\udfff]")


def encode_line(record: Mapping[str, Any]) -> bytes:
    """One line of UTF-8 JSON with its newline; a line that UTF-8 or a line reader could not take is written in ASCII.

    JSON has one spelling for a surrogate pair and the character that it means, so a pair comes back as that character.

    Raises:
        JournalError: a value is NaN, infinite or not JSON; the message names the item and the field.
    """
    try:
        text = _readable.encode(record)
        if not text.isascii() and _NEEDS_ESCAPES.search(text):
            text = _ascii.encode(record)
    except (ValueError, TypeError, RecursionError) as error:
        where = f"item {record.get('item_id')!r}, episode {record.get('index')}"
        raise JournalError(
            f"{where} of evaluation {record.get('evaluation')!r} cannot be written: {_culprit(record, error)}",
            "Rewards and metrics are finite numbers, and everything else is text, numbers, lists and dicts.",
        ) from None
    return text.encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """The object in a line.

    Raises:
        ValueError: it is no JSON object in UTF-8, or holds NaN or infinity.
    """
    text = line.decode().strip()
    try:
        record, end = _decoder.raw_decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if end != len(text):
        raise ValueError(f"something follows the object at column {end + 1}")
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def _plain(value: object) -> int | float:
    """Numpy scalars as the numbers they are."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _culprit(record: Mapping[str, Any], error: Exception) -> str:
    for path, value in _leaves(record):
        try:
            _readable.encode(value)
        except (ValueError, TypeError):
            return f"{path} is {value!r:.80}"
    return str(error)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


_readable = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_plain)
_decoder = json.JSONDecoder(parse_constant=_refuse)
