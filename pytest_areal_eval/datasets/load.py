"""From what the user names as a dataset to its records.

What exists on disk wins; then a hub name ``org/name``; then a dotted Python name.  A name never means more than it
says: ``/data/my-gsm8k-variant`` is a folder like any other.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from pytest_areal_eval.datasets import hub
from pytest_areal_eval.datasets.base import LoadedDataset, Record, check_record, near
from pytest_areal_eval.datasets.files import Part, data_stem, is_data_file, read_file, shown
from pytest_areal_eval.errors import DatasetError

Source = str | os.PathLike[str] | Callable[[], Iterable[Mapping[str, Any]]] | Sequence[Mapping[str, Any]]

_HUB_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<split>.+))?")
_PYTHON_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*[.:][^\W\d]\w*")
_SHARD = re.compile(r"-\d+-of-\d+$")


def load_dataset(
    source: Source,
    *,
    config: str | None = None,
    split: str | None = None,
    base_dir: Path,
    trust_remote_code: bool = False,
) -> LoadedDataset:
    """Load a dataset.

    Args:
        source: a file (JSONL, JSON, CSV, TSV, parquet), a folder of such files or of ``save_to_disk``, a hub name
            ``org/name[:split]``, a callable without arguments that returns mappings, its dotted name, or the mappings.
        config: which configuration of a hub dataset (or which subfolder) is meant.
        split: which split of a hub dataset, a DatasetDict or a folder is meant.
        base_dir: what a relative path starts from; the current folder comes second.
        trust_remote_code: let the hub dataset run its own loading script.

    Raises:
        DatasetError: it cannot be found or read, or is not a list of records; names file and line, or row.
    """
    if isinstance(source, (str, os.PathLike)):
        return _named(os.fspath(source), config, split, base_dir, trust_remote_code)
    if hub.is_library_object(source):
        return hub.of_library(source, name="dataset", source=type(source).__name__, split=split)
    what = f"callable {_callable_name(source)}()" if callable(source) else f"the given {type(source).__name__}"
    _refuse(config, split, what)
    if callable(source):
        return _called(source)
    if isinstance(source, Sequence):
        return _listed(source, name="records", source=f"{type(source).__name__} of {len(source)} records")
    raise DatasetError(
        f"a dataset cannot be of type {type(source).__name__}",
        "Give a path, a hub name, a function, the dotted name of one, or a list of dicts.",
    )


def _named(text: str, config: str | None, split: str | None, base_dir: Path, trust_remote_code: bool) -> LoadedDataset:
    path = next((p for p in (base_dir / text, Path.cwd() / text) if text and os.path.exists(p)), None)
    if path is not None and path.is_dir():
        return _folder(path, config, split)
    if path is not None:
        _refuse(config, split, shown(path))
        records, locate = read_file(path)
        return LoadedDataset(path.name, text, records, locate)
    looks_like_file = is_data_file(Path(text))
    if (match := _HUB_NAME.fullmatch(text)) and not looks_like_file:
        if split and match["split"] and split != match["split"]:
            raise DatasetError(f"{text}: split={split!r} says otherwise", "Give the split once.")
        try:
            return hub.load_hub(
                match["name"], config=config, split=split or match["split"], trust_remote_code=trust_remote_code
            )
        except DatasetError as error:
            raise DatasetError(f"{error.args[0]}{_nearby(text, base_dir)}", error.hint) from error.__cause__
    if _PYTHON_NAME.fullmatch(text) and not looks_like_file:
        _refuse(config, split, text)
        return _imported(text, base_dir)
    raise _not_found(text, base_dir)


# ---- folders ----------------------------------------------------------------------------------------------------


def _folder(path: Path, config: str | None, split: str | None) -> LoadedDataset:
    """A folder of ``save_to_disk``, or of data files, each named for its split (``test.jsonl``)."""
    name = shown(path)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        _refuse(config, None, name)
        return hub.load_saved(path, name, split=split)
    files = sorted(p for p in path.iterdir() if p.is_file() and is_data_file(p))
    if config is not None or not files:
        configs = [p.name for p in path.iterdir() if p.is_dir() and any(is_data_file(f) for f in p.iterdir())]
        if config is None and not configs:
            raise DatasetError(
                f"{name}: the folder holds no data files", "Put JSONL, JSON, CSV, TSV or parquet files into it."
            )
        config = hub.choose("config", configs, config, (*hub.CONFIGS, "data"), name)
        return _folder(path / config, None, split)
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_SHARD.sub("", data_stem(file)), []).append(file)
    chosen = hub.choose("split", list(splits), split, hub.SPLITS, name)
    records, locate = _joined([read_file(file) for file in splits[chosen]])
    return LoadedDataset(f"{path.name}:{chosen}", name, records, locate)


def _joined(parts: Sequence[Part]) -> Part:
    """Several files' records as one list; a row keeps its own file and line."""
    starts = list(accumulate((len(records) for records, _ in parts), initial=0))

    def locate(index: int) -> str:
        part = bisect_right(starts, index) - 1
        return parts[part][1](index - starts[part])

    return [record for records, _ in parts for record in records], locate


# ---- Python objects ---------------------------------------------------------------------------------------------


def _imported(text: str, base_dir: Path) -> LoadedDataset:
    try:
        found = pkgutil.resolve_name(text)
    except (ImportError, AttributeError) as error:
        raise _not_found(text, base_dir, f", nor such a Python name: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        raise DatasetError(
            f"{text}: importing it raised {type(error).__name__}: {error}", "Correct the module."
        ) from error
    if callable(found):
        return _called(found, text)
    if isinstance(found, Sequence) and not isinstance(found, str):
        return _listed(found, name=text.rpartition(".")[2], source=text)
    raise DatasetError(
        f"{text}: an object of type {type(found).__name__} is no dataset",
        "Name a function that returns records, or a list of dicts.",
    )


def _called(function: Callable[..., Any], name: str | None = None) -> LoadedDataset:
    name = name or _callable_name(function)
    source = f"callable {name}()"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DatasetError(
            f"{source}: a dataset function cannot be async", "Write it with def, or call asyncio.run inside of it."
        )
    try:
        result = function()
        if hub.is_library_object(result):
            return hub.of_library(result, name=name.rpartition(".")[2], source=source, split=None)
        records = list(result)
    except DatasetError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        raise DatasetError(
            f"{source}: raised {type(error).__name__}: {error}",
            "A dataset function takes no arguments and returns an iterable of dicts.",
        ) from error
    return _listed(records, name=name.rpartition(".")[2], source=source)


def _listed(values: Sequence[object], *, name: str, source: str) -> LoadedDataset:
    def locate(index: int) -> str:
        return f"{source} row {index}"

    records: list[Record] = [check_record(value, locate(index)) for index, value in enumerate(values)]
    if not records:
        raise DatasetError(f"{source}: holds no records", "Return at least one.")
    return LoadedDataset(name, source, records, locate)


def _callable_name(function: object) -> str:
    inner = getattr(function, "func", function)  # functools.partial
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{kind.__module__}.{kind.__qualname__}"


# ---- errors -----------------------------------------------------------------------------------------------------


def _refuse(config: str | None, split: str | None, source: str) -> None:
    for option, value in (("config", config), ("split", split)):
        if value is not None:
            raise DatasetError(
                f"{source}: {option}={value!r} was given, but only hub datasets and folders have one",
                f"Leave {option} out.",
            )


def _not_found(text: str, base_dir: Path, also: str = "") -> DatasetError:
    roots = " or ".join(dict.fromkeys([str(base_dir), str(Path.cwd())]))
    name = text if len(text) <= 100 else f"{text[:100]}…"
    return DatasetError(
        f"dataset {name!r}: no such file or folder in {roots}{also}{_nearby(text, base_dir)}",
        "Give a path, a hub name (org/name), or the dotted name of a function.",
    )


def _nearby(text: str, base_dir: Path) -> str:
    """Names like the wanted one in the folders where it was looked for."""
    for root in (base_dir, Path.cwd()):
        folder = (root / text).parent
        if os.path.isdir(folder) and (guess := near(Path(text).name, (p.name for p in folder.iterdir()))):
            return f"; did you mean {str(Path(text).with_name(guess))!r}?"
    return ""
