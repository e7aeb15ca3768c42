"""Read a run's episodes back, from the folder of a run that ended, was killed, still goes on, or was copied here.

Invariant: every whole line counts, nothing else does, and what did not count is told: appended to ``problems`` where
the caller gives a list, logged as a warning where not.  A torn last line is an episode still owed, not an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal.record import EPISODE, SCHEMA, EpisodeKey, decode_line, episode_from_dict
from pytest_areal_eval.journal.writer import journal_path

_log = logging.getLogger(__name__)


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
    latest: dict[EpisodeKey, Episode] = {}
    written: dict[EpisodeKey, tuple[Path, float]] = {}
    for path, line, record in _records(Path(where), problems):
        try:
            episode, at = episode_from_dict(record), float(record.get("at", 0.0))
        except (JournalError, TypeError, ValueError) as error:
            _tell(Problem(path, line, str(error)), problems)
            continue
        key = (episode.evaluation, episode.item_id, episode.index)
        before = written.get(key)
        if before is None or before[0] == path or before[1] <= at:
            latest[key] = episode
            written[key] = (path, at)
    return latest


def _records(where: Path, problems: list[Problem] | None) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    for path in _files(where):
        try:
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    record = _record(path, number, line, problems)
                    if record is not None and record.get("kind") == EPISODE:
                        yield path, number, record
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
