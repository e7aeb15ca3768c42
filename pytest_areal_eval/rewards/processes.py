"""Ending all that a process started, also what left its process group (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 100


def adopt_orphans() -> None:
    """Make this process the parent of every orphan among its descendants, so that a daemon stays below it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill all that this process and its descendants started.

    What was found is stopped before it is killed, because what is stopped cannot fork, and the search is repeated until
    nothing lives.
    """
    for round_ in range(_ROUNDS):
        found = set(descendants(os.getpid()))
        if not found:
            return
        _send(found, signal.SIGSTOP)
        _send(found, signal.SIGKILL)
        time.sleep(0.001 * round_)


def descendants(pid: int) -> Iterator[int]:
    """The living processes below ``pid``; zombies are left out."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    queue = [pid]
    while queue:
        found = children.get(queue.pop(), [])
        yield from found
        queue += found


def reap(pid: int) -> int | None:
    """Collect every child that ended; the exit code of ``pid`` (negative: its signal) if it was among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == pid:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals but the first and the last have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _parents() -> Iterator[tuple[int, int]]:
    """(process, its parent) for each process that lives."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            # "pid (name, which may hold spaces and brackets) state parent ..."
            state, parent = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                yield int(entry), int(parent)


def _send(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")
