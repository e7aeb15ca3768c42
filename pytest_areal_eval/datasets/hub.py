"""Datasets of the Hugging Face ``datasets`` library: from the hub, saved on disk, or handed over as objects.

Invariant: rows stay in Arrow and are decoded one at a time, when asked for; the library is imported here only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pytest_areal_eval.datasets.base import LoadedDataset, MadeRecords, Record, near
from pytest_areal_eval.errors import DatasetError

CONFIGS = ("default", "main")
SPLITS = ("test",)
"""What is taken where the user names none and there is a choice; anything else is asked for."""

_NAME_ONE = "Give one that exists: config=..., split=...."
_GO_LOCAL = (
    'Without a network give a local file or folder: dataset="data/test.jsonl" (JSONL, JSON, CSV, TSV, parquet, or '
    "what save_to_disk wrote).  HF_HUB_OFFLINE=1 takes what is cached without asking the hub."
)


class ArrowRecords(MadeRecords):
    """A ``datasets.Dataset`` as a sequence of dicts; an image is decoded when its row is read."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def made(self, index: int) -> Record:
        """A row, decoded."""
        return cast("Record", self._rows[index])

    def undecoded(self) -> Iterator[Record]:
        """Every row once, images and audio as ``{"bytes": ..., "path": ...}``."""
        for table in self._rows.with_format("arrow").iter(batch_size=1000):
            yield from table.to_pylist()


def load_hub(name: str, *, config: str | None, split: str | None, trust_remote_code: bool = False) -> LoadedDataset:
    """Load ``org/name``; without a config or a split the only one, or the usual one, is taken.

    Raises:
        DatasetError: the library is missing, the hub cannot be reached, or there is no such dataset, config or split.
    """
    library = _library(name)
    extra: dict[str, Any] = {"trust_remote_code": True} if trust_remote_code else {}
    try:
        with _no_progress_bars(library):
            # A single one stays unnamed: from its cache the library lists "default", whatever the config is called.
            if config is None and len(configs := library.get_dataset_config_names(name)) > 1:
                config = choose("config", configs, None, CONFIGS, name)
            if split is None:
                split = choose("split", library.get_dataset_split_names(name, config), None, SPLITS, name)
            rows = library.load_dataset(name, config, split=split, **extra)
    except DatasetError:
        raise
    except Exception as error:  # the library passes on whatever its HTTP client and its parsers raise
        raise DatasetError(
            f"{name}: cannot be loaded from the Hugging Face hub: {type(error).__name__}: {error}",
            _NAME_ONE if isinstance(error, ValueError) else _GO_LOCAL,
        ) from error
    return wrap(rows, name=f"{name.rsplit('/')[-1]}:{split}", source=f"{name}[{config or rows.config_name}, {split}]")


def load_saved(path: Path, source: str, *, split: str | None) -> LoadedDataset:
    """Load a folder that ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote."""
    library = _library(source)
    try:
        saved = library.load_from_disk(str(path))
    except Exception as error:  # Arrow's, the library's and the file system's errors alike
        raise DatasetError(
            f"{source}: cannot be loaded as a saved dataset: {type(error).__name__}: {error}",
            "Save it anew with save_to_disk, or give a data file.",
        ) from error
    return of_library(saved, name=path.name, source=source, split=split)


def is_library_object(value: object) -> bool:
    """Whether ``value`` is a Dataset or DatasetDict (told without importing the library)."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(value, (library.Dataset, library.DatasetDict))


def of_library(value: Any, *, name: str, source: str, split: str | None) -> LoadedDataset:
    """A Dataset, or the asked split of a DatasetDict."""
    if isinstance(value, dict):
        split = choose("split", list(value), split, SPLITS, source)
        return wrap(value[split], name=f"{name}:{split}", source=f"{source}[{split}]")
    if split is not None:
        raise DatasetError(f"{source}: split {split!r} was asked of a dataset without splits", "Leave split out.")
    return wrap(value, name=name, source=source)


def wrap(rows: Any, *, name: str, source: str) -> LoadedDataset:
    """A ``datasets.Dataset`` as a LoadedDataset."""
    if not len(rows):
        raise DatasetError(f"{source}: holds no records", "Choose another split.")
    return LoadedDataset(name, source, ArrowRecords(rows), lambda index: f"{source} row {index}")


def choose(what: str, available: Sequence[str], asked: str | None, usual: Sequence[str], source: str) -> str:
    """The asked name, else the only one, else the first usual one that is there; DatasetError names them all."""
    if asked is not None:
        if asked in available:
            return asked
        guess = near(asked, available)
        raise DatasetError(
            f"{source}: no {what} {asked!r}; there are: {', '.join(sorted(available)) or 'none'}",
            f"Did you mean {what}={guess!r}?" if guess else f"Give one of those as {what}=...",
        )
    if len(available) == 1:
        return available[0]
    found = next((name for name in usual if name in available), None)
    if found is None:
        raise DatasetError(
            f"{source}: which {what}?  There are: {', '.join(sorted(available)) or 'none'}",
            f"Give one of those as {what}=...",
        )
    return found


def _library(source: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DatasetError(
            f"{source}: reading it needs the datasets library", "pip install 'pytest-areal-eval[datasets]'"
        ) from error
    return datasets


@contextmanager
def _no_progress_bars(library: Any) -> Iterator[None]:
    """Progress bars off inside, as they were afterwards."""
    were_off = library.are_progress_bars_disabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            library.enable_progress_bars()
