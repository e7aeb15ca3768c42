"""A loaded dataset: its records, where each one stands, and a hash of what they say.

Invariant: the hash depends on the records alone, so the same rows as JSONL, parquet or a list are the same dataset.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

from pytest_areal_eval.errors import DatasetError

Record = dict[str, Any]
Locate = Callable[[int], str]


class MadeRecords(Sequence[Record]):
    """Records that are made when they are read."""

    @abstractmethod
    def made(self, index: int) -> Record:
        """One of them."""

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            return [self.made(i) for i in range(*index.indices(len(self)))]
        return self.made(index)


@dataclass(frozen=True, eq=False)
class LoadedDataset:
    """The records of one dataset.

    Attributes:
        name: short, for headers: ``gsm8k:test``, ``arithmetic.jsonl``.
        source: what was asked for.
        records: the rows; read one by index, or all of them with :meth:`scan`.
        locate: from an index to where that row stands.
    """

    name: str
    source: str
    records: Sequence[Record]
    locate: Locate = field(repr=False)

    def where(self, index: int) -> str:
        """Where a row stands: ``arithmetic.jsonl:17``, ``openai/gsm8k[main, test] row 16``."""
        return self.locate(index)

    def scan(self) -> Iterable[Record]:
        """Every record once, in order, with images and audio left encoded (decoding 5,000 takes half a minute)."""
        undecoded = getattr(self.records, "undecoded", None)
        return undecoded() if undecoded else self.records

    @cached_property
    def content_hash(self) -> str:
        """First 16 hex digits of the SHA-256 over the records' canonical JSON.

        A field that is None counts as absent: a table has to fill in what a JSON record leaves out.

        Raises:
            DatasetError: a record holds an object without a stable content.
        """
        digest = hashlib.sha256()
        for index, record in enumerate(self.scan()):
            present = {key: value for key, value in record.items() if value is not None}
            try:
                text = json.dumps(present, sort_keys=True, separators=(",", ":"), default=_stable)
            except (TypeError, ValueError) as error:
                raise DatasetError(
                    f"{self.where(index)}: the record cannot be fingerprinted: {error}",
                    "Give the field as text, numbers, bytes, an array, an image, or lists and dicts of them.",
                ) from error
            digest.update(text.encode())
            digest.update(b"\n")
        return digest.hexdigest()[:16]


def near(name: str, names: Iterable[str]) -> str:
    """The name that was probably meant, or an empty string."""
    import difflib

    by_folded = {known.casefold(): known for known in names}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else ""


def check_record(record: object, where: str) -> Record:
    """``record`` as a dict; raises DatasetError unless it is a mapping with text keys."""
    if not isinstance(record, Mapping):
        raise DatasetError(
            f"{where}: a record must be a mapping from field names to values, got {type(record).__name__}",
            'Give each record as {"question": ..., "answer": ...}.',
        )
    for key in record:
        if not isinstance(key, str):
            raise DatasetError(f"{where}: field names must be text, got {key!r}", f'Name the field "{key}".')
    return record if isinstance(record, dict) else dict(record)


def _stable(value: Any) -> Any:
    """A JSON value that stands for a non-JSON one: images and arrays by content, dates in ISO 8601."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "tobytes") and hasattr(value, "size"):
        return {"size": list(value.size), "sha256": hashlib.sha256(value.tobytes()).hexdigest()}
    raise TypeError(f"an object of type {type(value).__name__} has no stable content")
