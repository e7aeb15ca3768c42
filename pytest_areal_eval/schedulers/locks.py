"""Locks between runs on one machine: a file per thing, locked for as long as the processes that use the thing live.

Invariant: a lock is held by its open descriptor, which a process inherits; it ends with the last process that has it,
however that one ended.  A lock file that nobody holds means nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_areal_eval.errors import SchedulerError


@dataclass(frozen=True)
class Lock:
    """A held lock.  Used as a context manager it closes this process's descriptor, not those that others inherited."""

    path: Path
    fd: int

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def runtime_folder() -> Path:
    """The user's folder for locks, made on first use.

    The path is fixed, not taken from TMPDIR or XDG_RUNTIME_DIR: those differ between a login, cron and CI, and locks
    that do not meet protect nothing.

    Raises:
        SchedulerError: somebody else owns the folder or may write to it.
    """
    folder = Path(f"/tmp/pytest-areal-eval-{os.geteuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SchedulerError(
            f"The lock folder {folder} is not a folder that only user {os.geteuid()} may write to.",
            f"Remove it or have it removed: ls -ld {folder}",
        )
    return folder


def try_lock(folder: Path, key: str, holder: str) -> Lock | None:
    """Lock a thing without waiting; None if another process has it.

    Args:
        folder: where the lock files lie.
        key: the thing's name, ``gpu-GPU-8932f937-...``.
        holder: who takes it, for other runs' messages.
    """
    path = _path(folder, key)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        if os.fstat(fd).st_nlink:
            os.ftruncate(fd, 0)
            os.pwrite(fd, holder.encode(), 0)
            return Lock(path, fd)
        os.close(fd)  # discarded between our open and our lock: that file is nobody's any more


def is_free(folder: Path, key: str) -> bool:
    """Whether nobody has the lock now."""
    try:
        fd = os.open(_path(folder, key), os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def held_by(folder: Path, key: str) -> str:
    """Who has the lock, as they wrote it."""
    try:
        return _path(folder, key).read_text() or "an unnamed process"
    except FileNotFoundError:
        return "a process that has just ended"


def discard(path: Path) -> None:
    """Remove a lock file that nobody holds any more; one that somebody has taken meanwhile stays."""
    lock = try_lock(path.parent, path.name, "")
    if lock is not None:
        with lock:
            path.unlink(missing_ok=True)


def _path(folder: Path, key: str) -> Path:
    return folder / re.sub(r"[^A-Za-z0-9.-]", "_", key)
