"""Ending supervised processes from the owner's side, and making sure that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.schedulers import supervise

MARK = "AREAL_EVAL_INSTANCE"
"""Carries an instance's nonce in the environment of all that it starts, so that even what escaped is found."""

KILL_LIMIT_S = 5.0


def end(supervisors: Mapping[str, subprocess.Popen[bytes]], grace_s: float) -> None:
    """SIGTERM supervisors and all below them, SIGKILL what is left after the grace; returns when all is gone.

    Args:
        supervisors: the ``supervise.py`` processes by their mark's value; those that have ended are looked at too,
            since the partner of one that was killed may still be cleaning up.
        grace_s: seconds between SIGTERM and SIGKILL.

    Raises:
        SchedulerError: something is left 5 s after SIGKILL.
    """
    for process in supervisors.values():
        if process.poll() is None:
            supervise.send(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    seen: set[int] = set()
    while left := _left(supervisors) or [pid for pid in seen if running(pid)]:
        seen.update(left)
        late = time.monotonic() - deadline
        if late > KILL_LIMIT_S:
            raise SchedulerError(
                f"Processes {left} are still there {KILL_LIMIT_S:g} s after SIGKILL.",
                f"One in uninterruptible sleep (state D) keeps its GPU: ps -o pid,stat,wchan,cmd -p "
                f"{','.join(map(str, left))}",
            )
        if late >= 0:
            for pid in left:
                supervise.send(pid, signal.SIGKILL)
        time.sleep(0.02)


def _left(supervisors: Mapping[str, subprocess.Popen[bytes]]) -> list[int]:
    """The supervisors that live and all below them; when none does, the live processes that carry their marks."""
    roots = [process.pid for process in supervisors.values() if is_up(process)]
    if roots:
        return [*(pid for root in roots for pid in supervise.descendants(root)), *roots]
    return marked(supervisors)


def is_up(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child of this process has not ended.

    A signal handler that interrupts ``poll`` gets None from it for ever, since its lock is taken: so the process is
    looked at, and asked only once it has ended, which takes it from the kernel's list.
    """
    if process.returncode is None and running(process.pid):
        return True
    process.poll()
    return False


def running(pid: int) -> bool:
    """Whether any thread of a process has not ended; one that is dying still holds its files and devices."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


def marked(values: Iterable[str]) -> list[int]:
    """Live processes whose environment carries one of these values as their mark."""
    marks = {f"{MARK}={value}".encode() for value in values}
    found: list[int] = []
    for entry in os.listdir("/proc") if marks else ():
        if entry.isdigit():
            try:
                environment = Path("/proc", entry, "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has just ended, or is another user's
            if not marks.isdisjoint(environment.split(b"\0")):
                found.append(int(entry))
    return found
