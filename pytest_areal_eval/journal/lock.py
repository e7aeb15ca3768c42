"""One run at a time in a folder: a ``run.lock`` that names the host and the process that hold it.

Invariant: the kernel's file lock decides between two processes of one host and goes with the process, however it ends;
the name in the file decides between hosts, where a dead process cannot be told from a silent one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import socket
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_areal_eval.errors import JournalError

LOCK_NAME = "run.lock"


@dataclass(frozen=True)
class Holder:
    """Who holds a run.  ``started`` (clock ticks after boot) tells a process from a later one with its number."""

    host: str
    pid: int
    started: int | None = None

    @classmethod
    def me(cls) -> Holder:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), _start_ticks(os.getpid()))

    def may_live(self) -> bool:
        """Whether it may still run: False only for a process of this host that is gone."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return self.started is None or self.started == _start_ticks(self.pid)


class RunLock:
    """A held lock.  Where the file system has no locks (some Lustre mounts), the name in the file alone decides."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd: int | None = fd
        # A forked grader that outlives this process would keep the kernel's lock.
        forget = weakref.WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    @classmethod
    def acquire(cls, folder: Path) -> RunLock:
        """Hold the folder or raise at once.

        Raises:
            JournalError: another process holds it; the message names it.
            OSError: the lock cannot be written.
        """
        path = folder / LOCK_NAME
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                locked = _flock(fd)
                if locked and not _is_still(path, fd):
                    os.close(fd)
                    continue
                holder = _read_holder(fd)
                if not locked or (holder and holder.may_live()):
                    raise _held(path, holder)
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps(asdict(Holder.me())).encode(), 0)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.close(fd)
                raise
            return cls(path, fd)

    def release(self) -> None:
        """Let the next one in.  A second call does nothing."""
        if self._fd is not None:
            self._path.unlink(missing_ok=True)
            self._forget()

    def _forget(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def held_by(folder: Path) -> Holder | None:
    """Who holds a run now; None where nobody does, or the process that did is gone."""
    try:
        fd = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        holder = _read_holder(fd)
    finally:
        os.close(fd)
    return holder if holder is not None and holder.may_live() else None


def _held(path: Path, holder: Holder | None) -> JournalError:
    who = f"process {holder.pid} on {holder.host}" if holder else "another process"
    return JournalError(
        f"the run {path.parent} is held by {who}",
        f"Wait for it, or, if it is gone: rm {shlex.quote(str(path))}",
    )


def _flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
    return True


def _is_still(path: Path, fd: int) -> bool:
    """Whether the file that was locked is the one that has the name, and not one that its holder just removed."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _read_holder(fd: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(fd, 4096, 0)))
    except (ValueError, TypeError):
        return None


def _start_ticks(pid: int) -> int | None:
    """Field 22 of ``/proc/PID/stat``; None where there is none and for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])
