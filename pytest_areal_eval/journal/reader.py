"""Read a run's episodes back, from the folder of a run that ended, was killed, still goes on, or was copied here.

Invariant: every whole line counts, nothing else does, and what did not count is told: appended to ``problems`` where
the caller gives a list, logged as a warning where not.  A torn last line is an episode still owed, not an error.
"""

from __future__ import annotations

import gc
import logging
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
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
    with _no_collections():
        return _latest(_records(Path(where), problems), problems, episode_from_dict)


def latest_answers(where: Path, problems: list[Problem] | None = None) -> dict[EpisodeKey, list[Answer]]:
    """The engine's answers of each episode, by request, the last write for each.

    Arguments and errors are those of :func:`read_episodes`.
    """
    with _no_collections():
        return _answers((place for place in _lines(Path(where)) if place[2].startswith(_ANSWER)), problems)


def finished_and_owed(
    where: Path, given_up: Container[str], problems: list[Problem] | None = None
) -> tuple[dict[EpisodeKey, dict[str, Any]], dict[EpisodeKey, list[Answer]]]:
    """The finished episodes' lines, and the answers of all others, in one pass over the journal.

    An answer is dropped undecoded as soon as its episode's end is read, so that what is done costs 7 µs an episode.

    Args:
        where: a run's folder, or one journal file.
        given_up: statuses of episodes that are owed all the same.
        problems: receives the lines that were left out; without it they are logged.

    Raises:
        JournalError: as :func:`read_episodes`.
    """
    waiting: dict[bytes, list[tuple[Path, int, bytes]]] = defaultdict(list)

    def episodes() -> Iterator[tuple[Path, int, dict[str, Any]]]:
        for path, number, line in _lines(Path(where)):
            if line.startswith(_ANSWER):
                waiting[line[len(_ANSWER) : line.find(b',"request":')]].append((path, number, line))
            elif (record := _episode(path, number, line, problems)) is not None:
                if record.get("status") not in given_up:
                    waiting.pop(line[line.find(b'"evaluation":') : line.find(b',"status":')], None)
                yield path, number, record

    with _no_collections():
        records = _latest(episodes(), problems, lambda record: record)
        answers = _answers((one for found in waiting.values() for one in found), problems)
    finished = {key: record for key, record in records.items() if record.get("status") not in given_up}
    return finished, {key: found for key, found in answers.items() if key not in finished}


def _answers(
    lines: Iterable[tuple[Path, int, bytes]], problems: list[Problem] | None
) -> dict[EpisodeKey, list[Answer]]:
    found: dict[EpisodeKey, dict[int, Answer]] = defaultdict(dict)
    for path, number, line in lines:
        try:
            record = decode_line(line)
            answer = answer_of(record)
            found[answer_key(record)][answer.request] = answer
        except (ValueError, KeyError, TypeError) as error:
            _tell(Problem(path, number, f"no answer: {error}", not line.endswith(b"\n")), problems)
    return {key: [answers[request] for request in sorted(answers)] for key, answers in found.items()}


def _latest(
    records: Iterable[tuple[Path, int, dict[str, Any]]],
    problems: list[Problem] | None,
    make: Callable[[dict[str, Any]], T],
) -> dict[EpisodeKey, T]:
    latest: dict[EpisodeKey, T] = {}
    written: dict[EpisodeKey, tuple[Path, float]] = {}
    for path, line, record in records:
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
    """Collections over a growing heap of rows, none of them garbage, would take half of the time.

    What was read is then left out of the next ones too: the first alone takes 0.2 s for 100,000 rows.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


def _records(where: Path, problems: list[Problem] | None) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    for path, number, line in _lines(where):
        if line.startswith(_ANSWER) and line.endswith(b"\n"):
            continue
        record = _episode(path, number, line, problems)
        if record is not None:
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


def _episode(path: Path, number: int, line: bytes, problems: list[Problem] | None) -> dict[str, Any] | None:
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
    return record if record.get("kind") == EPISODE else None


def _tell(problem: Problem, problems: list[Problem] | None) -> None:
    if problems is None:
        _log.warning("%s", problem)
    else:
        problems.append(problem)
