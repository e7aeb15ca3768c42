"""Readers of data files: JSONL, JSON, CSV, TSV (each also gzipped) and parquet.

Strict: whatever is not plainly a record is an error that names file and line; nothing is skipped, padded or guessed.
"""

from __future__ import annotations

import csv
import gzip
import json
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from pytest_areal_eval.datasets.base import Locate, Record, check_record
from pytest_areal_eval.errors import DatasetError

Part = tuple[Sequence[Record], Locate]
"""Records of one file, and where each of them stands."""

BOM = b"\xef\xbb\xbf"


def read_file(path: Path) -> Part:
    """Read one data file; the extension says how.

    Raises:
        DatasetError: unknown extension, unreadable file, or content that is not a list of records.
    """
    reader = _READERS.get(_kind(path))
    if reader is None:
        raise DatasetError(
            f"{shown(path)}: the extension {path.suffix or '(none)'!r} is not one that is read",
            f"Rename or convert it to one of {', '.join(KINDS)}; all but parquet may also be gzipped (.jsonl.gz).",
        )
    try:
        records, locate = reader(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(
            f"{shown(path)}: cannot be read: {error}", "Check the path, its permissions, and that it is complete."
        ) from error
    if not records:
        raise DatasetError(f"{shown(path)}: holds no records", "Add at least one, or check how it was written.")
    return records, locate


def is_data_file(path: Path) -> bool:
    """Whether the name says that :func:`read_file` reads it."""
    return not path.name.startswith(".") and _kind(path) in _READERS


def data_stem(path: Path) -> str:
    """The file's name without its data extensions: ``test`` of ``test.jsonl.gz``."""
    return path.name.removesuffix(".gz").removesuffix(_kind(path).removesuffix(".gz"))


def shown(path: Path) -> str:
    """The path as a person would type it: relative to the current folder where it lies in it."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def _kind(path: Path) -> str:
    return "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


# ---- JSON -------------------------------------------------------------------------------------------------------


def _read_jsonl(path: Path) -> Part:
    name = shown(path)

    def locate(index: int) -> str:
        return f"{name}:{index + 1}"

    records = [check_record(_parse(text, where), where) for text, where in _lines(path)]
    return records, locate


def _read_json(path: Path) -> Part:
    name = shown(path)
    text = "".join(text for text, _ in _lines(path, blank_is_error=False))
    if not text.strip():
        return [], str
    try:
        content = _JSON.decode(text)
    except (ValueError, RecursionError) as error:
        where, hint = name, "Correct the file."
        if isinstance(error, json.JSONDecodeError):
            where = f"{name}:{error.lineno}"
            if error.msg == "Extra data":
                hint = "If it holds one object on each line, name it .jsonl."
        raise DatasetError(f"{where}: not valid JSON: {error}", hint) from error
    if isinstance(content, dict):
        content = content.get("data")
    if not isinstance(content, list):
        raise DatasetError(
            f'{name}: a JSON dataset is a list of objects, or {{"data": [...]}}',
            "Wrap the records in a list, or write one object on each line of a .jsonl file.",
        )

    def locate(index: int) -> str:
        return f"{name} item {index}"

    return [check_record(record, locate(index)) for index, record in enumerate(content)], locate


def _parse(text: str, where: str) -> Any:
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        torn = "" if text.endswith("\n") else "; it is the last line and may be torn: was the file written to its end?"
        raise DatasetError(
            f"{where}: not valid JSON: {reason}{torn}", "Write one complete JSON object on each line."
        ) from error


def _object(pairs: list[tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the field {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return record


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON; use null or a finite number")


def _finite(text: str) -> float:
    value = float(text)
    return value if abs(value) != float("inf") else _no_constant(text)


_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)


# ---- CSV --------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> Part:
    return _read_table(path, ",")


def _read_tsv(path: Path) -> Part:
    return _read_table(path, "\t")


def _read_table(path: Path, delimiter: str) -> Part:
    name = shown(path)
    reader = csv.reader((text for text, _ in _lines(path)), delimiter=delimiter, strict=True)
    records: list[Record] = []
    starts: list[int] = []  # a quoted field may span lines, so a row's line is not its index
    try:
        header = _header(next(reader, []), name)
        start = reader.line_num + 1
        for row in reader:
            if len(row) != len(header):
                raise DatasetError(
                    f"{name}:{start}: the row has {len(row)} fields where the header names {len(header)}: "
                    f"{', '.join(header)}",
                    "Add the missing fields (quote those that hold a delimiter or a line break).",
                )
            records.append(dict(zip(header, row, strict=True)))
            starts.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise DatasetError(
            f"{name}:{reader.line_num}: not valid CSV: {error}",
            'Quote fields that hold a delimiter, a quote ("") or a line break; put very long texts into a .jsonl file.',
        ) from error
    return records, lambda index: f"{name}:{starts[index]}"


def _header(header: list[str], name: str) -> list[str]:
    doubled = sorted({column for column in header if header.count(column) > 1})
    if doubled:
        raise DatasetError(f"{name}:1: the header names {doubled[0]!r} twice", "Give each column its own name.")
    if not all(header):
        raise DatasetError(f"{name}:1: the header has a column without a name", "Name it, or remove the column.")
    return header


# ---- parquet ----------------------------------------------------------------------------------------------------


def _read_parquet(path: Path) -> Part:
    name = shown(path)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DatasetError(
            f"{name}: reading parquet needs pyarrow", "pip install 'pytest-areal-eval[datasets]'"
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _header(list(file.schema_arrow.names), name)
            records = file.read().to_pylist()
    except pyarrow.ArrowException as error:
        raise DatasetError(f"{name}: not a valid parquet file: {error}", "Write it anew.") from error
    return cast("list[Record]", records), lambda index: f"{name} row {index}"


# ---- lines ------------------------------------------------------------------------------------------------------


def _lines(path: Path, *, blank_is_error: bool = True) -> Iterator[tuple[str, str]]:
    """Each line with its end, and its ``file:line``.  Only ``\\n`` ends a line: JSON text may hold U+2028."""
    name = shown(path)
    with _open(path) as file:
        for number, raw in enumerate(file, 1):
            where = f"{name}:{number}"
            if number == 1 and raw.startswith(BOM):
                how = _edited(path, r"sed '1s/^\xEF\xBB\xBF//'")
                raise DatasetError(f"{where}: the file starts with a byte-order mark", how)
            if blank_is_error and not raw.strip():
                raise DatasetError(f"{where}: the line is blank", _edited(path, "sed '/^[[:space:]]*$/d'"))
            try:
                yield raw.decode(), where
            except UnicodeDecodeError as error:
                raise DatasetError(
                    f"{where}: not UTF-8: byte {raw[error.start]:#04x} at offset {error.start}",
                    f"{_edited(path, 'iconv -f latin1 -t utf-8')}   (if it is Latin-1)",
                ) from error


def _edited(path: Path, program: str) -> str:
    """The command that writes a corrected copy beside a file."""
    name, copy = shlex.quote(shown(path)), shlex.quote(shown(path.with_name(f"fixed-{path.name}")))
    if path.suffix.lower() == ".gz":
        return f"zcat {name} | {program} | gzip > {copy}"
    return f"{program} {name} > {copy}"


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


_READERS: dict[str, Callable[[Path], Part]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl.gz": _read_jsonl,
    ".json.gz": _read_json,
    ".csv.gz": _read_csv,
    ".tsv.gz": _read_tsv,
    ".parquet": _read_parquet,
}
KINDS = tuple(kind for kind in _READERS if not kind.endswith(".gz"))
