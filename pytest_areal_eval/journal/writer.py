"""The append-only journal: one line for each finished episode, in the kernel's hands before anyone hears of it.

Invariant: whatever ended the process, at whatever byte, the file is a run of whole lines and at most one torn one, and
a torn line is never glued to the next.  A killed process loses nothing that :meth:`Journal.append` returned for; a
machine that loses power loses at most ``sync_interval_s`` seconds.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal.answers import Answer, encode_answer
from pytest_areal_eval.journal.record import encode_line, episode_to_dict

MAIN = "main"
CLOSE_TIMEOUT_S = 30.0


def journal_path(folder: Path, writer: str = MAIN) -> Path:
    """``episodes.jsonl`` for the main process, ``episodes.<writer>.jsonl`` for any other."""
    return folder / ("episodes.jsonl" if writer == MAIN else f"episodes.{writer}.jsonl")


class Journal:
    """One process's file of episodes.  Any thread may append."""

    def __init__(self, path: Path, fd: int, sync_interval_s: float) -> None:
        self.path = path
        self.written = 0
        self._lines = 0
        self._fd = fd
        self._lock = threading.Lock()
        self._failure: JournalError | None = None
        self._told = False
        self._closed = False
        self._stop = threading.Event()
        self._syncer = threading.Thread(
            target=self._sync_until_stopped, args=(sync_interval_s,), name="journal-sync", daemon=True
        )
        self._syncer.start()

    @classmethod
    def open(cls, folder: Path, writer: str = MAIN, *, sync_interval_s: float = 5.0) -> Journal:
        """Open this process's file in a run's folder, after whatever it already holds.

        Args:
            folder: the run's folder; :class:`RunFolder` guards it against a second run.
            writer: a name that is this process's alone within the run (``main``, ``gw0``).
            sync_interval_s: how often a thread flushes the file to the disk, in seconds.

        Raises:
            JournalError: the file cannot be opened.
        """
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", writer):
            raise JournalError(f"a journal's writer is named by letters, digits, - and _, not {writer!r}")
        path = journal_path(folder, writer)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                _end_torn_line(fd)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise JournalError(
                f"cannot open the journal {path}: {error.strerror}",
                "Give a folder that can be written: --results-dir=PATH",
            ) from error
        return cls(path, fd, sync_interval_s)

    def append(self, episode: Episode, *, extra: Mapping[str, Any] | None = None) -> None:
        """Write one episode; on return it survives the process's death.

        Args:
            episode: the finished episode.
            extra: further JSON values for the same line.

        Raises:
            JournalError: the episode cannot be written as JSON (the journal goes on), or the file cannot be written
                (the journal is over: every later call raises the same error at once).
        """
        self._write(encode_line(episode_to_dict(episode, extra)), episodes=1)

    def append_answer(self, answer: Answer) -> None:
        """Write one answer of the engine, before it is graded; errors are those of :meth:`append`."""
        self._write(encode_answer(answer), episodes=0)

    def close(self) -> None:
        """Flush to the disk and close.  A second call does nothing.

        Raises:
            JournalError: the disk refused what was written (and no ``append`` has said so yet), or does not answer.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop.set()
        self._syncer.join(CLOSE_TIMEOUT_S)
        if self._syncer.is_alive():
            raise JournalError(
                f"{self.path} is still not on the disk after {CLOSE_TIMEOUT_S:.0f} s of waiting for fsync",
                "Look at the file system's health; the episodes are written but would not survive a power cut.",
            )
        os.close(self._fd)
        if self._failure and not self._told:
            raise self._failure

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes, *, episodes: int) -> None:
        with self._lock:
            self._check_open()
            try:
                _write_whole(self._fd, line)
            except OSError as error:
                self._fail(error)
                self._check_open()
            self._lines += 1
            self.written += episodes

    def _check_open(self) -> None:
        if self._failure:
            self._told = True
            raise JournalError(self._failure.args[0], self._failure.hint)
        if self._closed:
            raise JournalError(f"the journal {self.path} is closed; nothing can be added to it")

    def _fail(self, error: OSError) -> None:
        self._failure = self._failure or JournalError(
            f"the journal {self.path} cannot be written: {error.strerror}. "
            f"The {self.written} episodes written before are safe in it; this run's next ones would be lost.",
            "Free some space, or give another folder with --results-dir=PATH, and run again.",
        )

    def _sync_until_stopped(self, interval_s: float) -> None:
        # A thread, because an fsync takes 1 to 1000 ms and append runs in the event loop.
        synced = 0
        stopping = False
        while not stopping:
            stopping = self._stop.wait(interval_s)
            written = self._lines
            if written == synced:
                continue
            try:
                _sync(self._fd)
            except OSError as error:
                self._fail(error)
                return
            synced = written


def merge_journals(folder: Path) -> None:
    """Append the files of a run's other writers to ``episodes.jsonl`` and remove them.

    What is there twice after a crash in between counts once.

    Args:
        folder: the run's, which nobody else writes to.

    Raises:
        JournalError: it cannot be written.
    """
    whole = journal_path(folder)
    try:
        # By their last write: a worker that stands in for one that crashed may have made the same episode again.
        parts = sorted(folder.glob("episodes.*.jsonl"), key=lambda part: part.stat().st_mtime_ns)
        if not parts:
            return
        fd = os.open(whole, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            for part in parts:
                _end_torn_line(fd)
                _write_whole(fd, part.read_bytes())
            _end_torn_line(fd)
            _sync(fd)
        finally:
            os.close(fd)
        for part in parts:
            part.unlink()
    except OSError as error:
        raise JournalError(
            f"the workers' journals cannot be added to {whole}: {error.strerror}",
            "Free some space, or give another folder with --results-dir=PATH.",
        ) from error


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS):  # a file that has no disk behind it
            raise


def _write_whole(fd: int, line: bytes) -> None:
    """One ``write`` in all but rare cases: the kernel may take less at a signal or when the disk is almost full."""
    written = os.write(fd, line)
    while written < len(line):
        written += os.write(fd, line[written:])


def _end_torn_line(fd: int) -> None:
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        _write_whole(fd, b"\n")
