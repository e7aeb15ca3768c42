"""What makes two runs comparable: hashes of prompts and records, and the dataset's identity.

Invariant: equal content has equal hashes on every machine and in every process; nothing here depends on addresses,
dict order or the hash seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Set, Sized
from typing import Any, Protocol

from pytest_areal_eval.errors import DatasetError


class LoadedDataset(Protocol):
    """What :func:`dataset_identity` needs of a dataset."""

    @property
    def name(self) -> str: ...
    @property
    def content_hash(self) -> str: ...
    @property
    def records(self) -> Sized: ...


def dataset_identity(dataset: LoadedDataset) -> dict[str, Any]:
    """Name, content hash and number of records: what ``run.json`` keeps of a dataset."""
    return {"name": dataset.name, "content_hash": dataset.content_hash, "records": len(dataset.records)}


def prompt_hash(text: str) -> str:
    """16 hex digits of the SHA-256 of a rendered prompt."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def item_hash(record: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 of a record's canonical JSON: sorted keys, lists and tuples alike.

    What JSON has no form for is stood in for by its type and its content: bytes, images, arrays and tensors by a
    digest, sets sorted, dataclasses by their fields, anything else by its ``repr`` without memory addresses.

    Raises:
        DatasetError: a key is no string, or the record contains itself.
    """
    try:
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), default=_stand_in)
    except (TypeError, ValueError, RecursionError) as error:
        raise DatasetError(
            f"a record cannot be hashed: {error}", "Within a record, every key is a string and nothing contains itself."
        ) from None
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _stand_in(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return ["bytes", hashlib.sha256(value).hexdigest()]
    kind = type(value).__qualname__
    if isinstance(value, Set):
        return [kind, sorted(json.dumps(inner, sort_keys=True, default=_stand_in) for inner in value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [kind, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}]
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu().numpy()
    if hasattr(value, "tobytes"):  # an image or an array; a numpy scalar too
        shape = [str(getattr(value, name, "")) for name in ("mode", "size", "dtype", "shape")]
        return [kind, shape, hashlib.sha256(value.tobytes()).hexdigest()]
    return [kind, re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))]
