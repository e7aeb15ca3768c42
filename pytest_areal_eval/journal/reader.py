"""Read a run's episodes back, from the folder of a run that ended, was killed, still goes on, or was copied here.

Invariant: every whole line counts, nothing else does, and what did not count is told: appended to ``problems`` where
the caller gives a list, logged as a warning where not.  A torn last line is an episode still owed, not an error.
"""

from __future__ import annotations

import gc
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_areal_eval.api import Episode
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal.answers import GENERATION, Answer, answer_key, answer_of
from pytest_areal_eval.journal.record import EPISODE, SCHEMA, EpisodeKey, decode_line, episode_from_dict
from pytest_areal_eval.journal.writer import journal_path

T = TypeVar("T")
_log = logging.getLogger(__name__)
_ANSWER = f'{{"v":{SCHEMA},"kind":"{GENERATION}",'.encode()
"""How an answer's line begins.  It is as long as its episode's, so where episodes are wanted it is not decoded."""


@dataclass(frozen=True)
class Problem:
    """A line that did not count.

    Attributes:
        path: the file.
        line: its number, from 1.
        reason: why.
        torn: it is the last line and has no end: the process died in the middle of it.
    """

    path: Path
    line: int
    reason: str
    torn: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


def read_episodes(where: Path, problems: list[Problem] | None = None) -> Iterator[dict[str, Any]]:
    """Every episode's line in the order of writing, file by file; duplicates are kept and memory stays flat.

    Args:
        where: a run's folder, or one journal file.
        problems: receives the lines that were left out; without it they are logged.

    Raises:
        JournalError: there is no such folder, it cannot be read, or a newer version wrote it.
    """
    for _, _, record in _records(Path(where), problems):
        yield record


def latest_episodes(where: Path, problems: list[Problem] | None = None) -> dict[EpisodeKey, Episode]:
    """The last write for each (evaluation, item id, index); all of the run's episodes are in memory at once.

    Within a file the later line is the last write; between files (one a process) the later ``at`` is.
    Arguments and errors are those of :func:`read_episodes`.
    """
    return _latest(where, problems, episode_from_dict)


def latest_records(where: Path, problems: list[Problem] | None = None) -> dict[EpisodeKey, dict[str, Any]]:
    """The same with each line's content as it stands: 100,000 lines take half the time that their episodes would."""
    return _latest(where, problems, lambda record: record)


def latest_answers(
    where: Path, *, without: Container[EpisodeKey] = (), problems: list[Problem] | None = None
) -> dict[EpisodeKey, list[Answer]]:
    """The engine's answers of each episode, by request, the last write for each.

    Args:
        where: a run's folder, or one journal file.
        without: episodes whose answers nobody needs.
        problems: receives the lines that were left out; without it they are logged.

    Raises:
        JournalError: as :func:`read_episodes`.
    """
    found: dict[EpisodeKey, dict[int, Answer]] = defaultdict(dict)
    with _no_collections():
        for path, number, line in _lines(Path(where)):
            if not line.startswith(_ANSWER):
                continue
            try:
                key = answer_key(json.loads(line[: line.index(b',"request":')] + b"}"))
                if key in without:
                    continue
                answer = answer_of(decode_line(line))
            except (ValueError, KeyError, TypeError) as error:
                _tell(Problem(path, number, f"no answer: {error}", not line.endswith(b"\n")), problems)
                continue
            found[key][answer.request] = answer
    return {key: [answers[request] for request in sorted(answers)] for key, answers in found.items()}


def _latest(where: Path, problems: list[Problem] | None, make: Callable[[dict[str, Any]], T]) -> dict[EpisodeKey, T]:
    latest: dict[EpisodeKey, T] = {}
    written: dict[EpisodeKey, tuple[Path, float]] = {}
    with _no_collections():
        for path, line, record in _records(Path(where), problems):
            try:
                made, at = make(record), float(record.get("at", 0.0))
                key = (str(record.get("evaluation", "")), str(record["item_id"]), int(record.get("index", 0)))
            except (JournalError, KeyError, TypeError, ValueError) as error:
                _tell(Problem(path, line, str(error)), problems)
                continue
            before = written.get(key)
            if before is None or before[0] == path or before[1] <= at:
                latest[key] = made
                written[key] = (path, at)
    return latest


@contextmanager
def _no_collections() -> Iterator[None]:
    """Collections over a growing heap of rows, none of them garbage, would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _records(where: Path, problems: list[Problem] | None) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    for path, number, line in _lines(where):
        if line.startswith(_ANSWER) and line.endswith(b"\n"):
            continue
        record = _record(path, number, line, problems)
        if record is not None and record.get("kind") == EPISODE:
            yield path, number, record


def _lines(where: Path) -> Iterator[tuple[Path, int, bytes]]:
    for path in _files(where):
        try:
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    yield path, number, line
        except OSError as error:
            raise JournalError(f"cannot read the journal {path}: {error.strerror}") from error


def _files(where: Path) -> list[Path]:
    if where.is_file():
        return [where]
    if not where.is_dir():
        raise JournalError(
            f"there is no run at {where}", "Give a run's folder, such as eval-results/latest, or its episodes.jsonl."
        )
    main = journal_path(where)
    return [path for path in (main, *sorted(where.glob("episodes.*.jsonl"))) if path.is_file()]


def _record(path: Path, number: int, line: bytes, problems: list[Problem] | None) -> dict[str, Any] | None:
    try:
        record = decode_line(line)
    except ValueError as error:
        torn = not line.endswith(b"\n")
        reason = "the line has no end; its episode is owed" if torn else f"no journal line: {error}"
        if line.strip():
            _tell(Problem(path, number, reason, torn), problems)
        return None
    version = record.get("v")
    if type(version) is not int:
        _tell(Problem(path, number, f"no journal line: its schema version is {version!r}"), problems)
        return None
    if version > SCHEMA:
        raise JournalError(
            f"{path}:{number} was written in schema {version}; this version reads up to {SCHEMA}",
            "pip install --upgrade pytest-areal-eval",
        )
    return record


def _tell(problem: Problem, problems: list[Problem] | None) -> None:
    if problems is None:
        _log.warning("%s", problem)
    else:
        problems.append(problem)
