"""The process above a grader: forks it, ends it with all that it started, forks the next.

Invariant: it runs none of the user's code, so it is never stuck; when its control socket closes, because the pool was
closed or its owner is dead, everything below it is killed and it leaves.

Over the control socket it sends each new grader's pid with the grader's own socket and, after that grader's end, its
exit code; what it receives is the pid of the grader to end, which may have ended by then.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import sys

from pytest_areal_eval.rewards import processes, worker


def main(control_fd: int, memory_mb: int) -> None:
    """Keep a grader until the control socket closes; ``memory_mb`` 0 sets no limit."""
    import math_verify  # noqa: F401 - 0.3 s, paid here once and not by each grader

    processes.adopt_orphans()
    _silence()
    gc.freeze()  # shared with every grader, so never copied by a collection
    with socket.socket(fileno=control_fd) as control, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while (code := _keep_one(control, memory_mb)) is not None:
            control.send(str(code).encode())
    os._exit(0)  # 60 ms sooner than an interpreter with mathematics in it


def _keep_one(control: socket.socket, memory_mb: int) -> int | None:
    """Fork a grader and see it end; its exit code, or None when the pool is gone."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        control.close()
        ours.close()
        worker.main(theirs.detach(), memory_mb)
        os._exit(0)
    with ours, theirs:
        socket.send_fds(control, [str(pid).encode()], [ours.fileno()])
    try:
        return _watch(control, pid)
    finally:
        processes.kill_descendants()
        processes.reap(pid)


def _watch(control: socket.socket, pid: int) -> int | None:
    grader = os.pidfd_open(pid)
    try:
        while True:
            ready, _, _ = select.select([control.fileno(), grader], [], [], 1.0)
            if control.fileno() in ready:
                message = control.recv(16)
                if not message:
                    return None
                if int(message) == pid:
                    processes.kill_descendants()
            if (code := processes.reap(pid)) is not None:  # and orphans, which would stay zombies
                return code
    finally:
        os.close(grader)


def _silence() -> None:
    """Send what rewards print nowhere: it would tear the terminal's report."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(null, stream.fileno())
    os.close(null)
