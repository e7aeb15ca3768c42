"""Ending a process with all that it started, also what left its process group (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 20


def adopt_orphans() -> None:
    """Make this process the parent of every orphaned descendant, so that a daemon stays in its tree."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_when_parent_dies(signum: signal.Signals) -> None:
    """Have the kernel send ``signum`` to this process when the thread that started it is gone."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants.

    Everything is stopped before anything is killed, until no new process appears: what is stopped cannot fork, and as
    long as the root lives its orphans stay below it (see :func:`adopt_orphans`).
    """
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = {pid, *descendants(pid)} - stopped
        if not fresh:
            break
        _send(fresh, signal.SIGSTOP)
        stopped |= fresh
    _send(stopped - {pid, os.getpid()}, signal.SIGKILL)
    _send({pid}, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill all that this process started, itself excepted."""
    _send(set(descendants(os.getpid())), signal.SIGKILL)


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


def _send(pids: set[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")
