"""Items' ids, and which items a run takes.

Invariant: an id depends on its record, a selection on the ids; neither on chance, on time or on how many workers ask.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from pytest_areal_eval.datasets.base import LoadedDataset
from pytest_areal_eval.errors import ConfigError, DatasetError

MAX_LENGTH = 60
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def item_ids(dataset: LoadedDataset) -> list[str]:
    """One id for each record, of ``[A-Za-z0-9._-]`` and at most 60 characters.

    It is the record's ``id`` (text or int), else its zero-padded index.  An id that is too long, or of which nothing
    or the same as of another one is left without its other characters, ends in 8 hex digits of its SHA-256.

    Raises:
        DatasetError: two records have the same id, or an id is empty or of another type.
    """
    raw = _raw_ids(dataset)
    _check_distinct(raw, dataset)
    cleaned = [_cleaned(text) for text in raw]
    taken = Counter(cleaned)
    ids = [
        with_hash(clean, text) if not 0 < len(clean) <= MAX_LENGTH or (taken[clean] > 1 and clean != text) else clean
        for clean, text in zip(cleaned, raw, strict=True)
    ]
    _check_distinct(ids, dataset)
    return ids


def _cleaned(text: str) -> str:
    clean = _UNSAFE.sub("-", text)
    return clean if clean == text else clean.strip("-")  # of "数学-1" the 1 is left, of "数学" nothing


def with_hash(clean: str, text: str) -> str:
    """``clean``, cut so that 8 hex digits of ``text``'s SHA-256 fit behind it."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{clean[: MAX_LENGTH - 9]}-{digest}".lstrip("-")


def select(
    ids: Sequence[str], *, limit: int | None = None, shard: tuple[int, int] | None = None, seed: int = 0
) -> list[int]:
    """Indices of the items to run, in dataset order.

    Args:
        ids: every item's id, in dataset order.
        limit: how many to draw; the ``limit`` ids whose hash with ``seed`` is lowest, so that a row added to the
            dataset displaces at most one of them, and their order does not matter.
        shard: ``(i, n)``, i from 1: every n-th of the drawn ones.  The n shards are disjoint, make up the whole, and
            differ in size by at most 1.
        seed: another seed draws another sample.

    Raises:
        ConfigError: ``limit`` or ``shard`` is out of range.
    """
    chosen = range(len(ids)) if limit is None else _sample(ids, limit, seed)
    if shard is None:
        return list(chosen)
    part, parts = shard
    if not 1 <= part <= parts:
        raise ConfigError(f"shard {part}/{parts}: there is no such part", f"Give one of 1/{parts} to {parts}/{parts}.")
    return list(chosen[part - 1 :: parts])


def _sample(ids: Sequence[str], limit: int, seed: int) -> Sequence[int]:
    if limit < 1:
        raise ConfigError(f"limit {limit}: nothing would be run", "Give a limit of at least 1, or leave it out.")
    by_rank = sorted(range(len(ids)), key=lambda index: (_rank(seed, ids[index]), ids[index]))
    return sorted(by_rank[:limit])


def _rank(seed: int, item_id: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{item_id}".encode(), digest_size=8).digest()


def _raw_ids(dataset: LoadedDataset) -> list[str]:
    width = max(4, len(str(len(dataset.records) - 1)))
    raw = []
    for index, record in enumerate(dataset.scan()):
        value = record.get("id")
        if value is None:
            raw.append(f"{index:0{width}}")
        elif isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            raw.append(str(value))
        else:
            raise DatasetError(
                f"{dataset.where(index)}: the id {value!r} is no text or whole number",
                "Give the record a text id, or none: then its index is its id.",
            )
    return raw


def _check_distinct(ids: Sequence[str], dataset: LoadedDataset) -> None:
    first: dict[str, int] = {}
    for index, item_id in enumerate(ids):
        if first.setdefault(item_id, index) != index:
            raise DatasetError(
                f"{dataset.where(index)}: the id {item_id!r} is already that of {dataset.where(first[item_id])}",
                "Give each record its own id, or none: then its index is its id.",
            )
