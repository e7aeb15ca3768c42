"""Run a command, and end it with every descendant when its owner is gone.

    python -I -S supervise.py OWNERPID [GRACE_S] -- CMD...

CMD and all that it started, even what daemonized, end when the owner (our parent) is gone however it died, on SIGTERM,
SIGINT or SIGHUP, or when CMD itself ends: SIGTERM first, SIGKILL after GRACE_S (10) seconds or on SIGUSR1.  The exit
status is CMD's (128 + n for signal n; 0 if it was asked to end).  Stdlib only, Linux 5.3 or newer; runs as a bare file
on any node.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

USAGE = "usage: supervise.py OWNERPID [GRACE_S] -- CMD..."
ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
NOW = signal.SIGUSR1
"""The grace is over."""
ASKED = "asked to end"
ORPHANED = "the owner is gone"
EXITED = "the command ended"

_PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str]) -> int:
    """Start the two processes; returns in both of them, with the status to exit with.

    The inner one runs the command; the outer one, which is the owner's child, guards the inner one.  Each is a
    subreaper, so that whatever its descendants leave behind becomes its own child, and each cleans up if the other
    is SIGKILLed.
    """
    owner, grace_s, command = _parse(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDS, NOW, signal.SIGCHLD})  # until each process can hear them
    try:
        owner_fd = os.pidfd_open(owner)  # readable once that process ends, whatever its threads and forks do
        outer_fd = os.pidfd_open(os.getpid())
    except OSError as error:
        sys.exit(f"supervise: cannot watch process {owner}: {error.strerror} (Linux 5.3 or newer is needed)")
    if os.getppid() != owner:
        sys.exit(f"supervise: the owner {owner} was gone before the start")
    if not os.path.exists("/proc/thread-self/children"):
        sys.exit("supervise: /proc has no lists of children (CONFIG_PROC_CHILDREN), so descendants cannot be found")
    inner = os.fork()
    if inner == 0:
        os.setsid()
        return run(command, [owner_fd, outer_fd], grace_s)
    return guard(inner, owner_fd, grace_s)


def run(command: list[str], pidfds: list[int], grace_s: float) -> int:
    """The inner process: run the command until it ends, a watched process ends or a signal asks; then clean up."""
    watch = Watch()
    try:
        # SIGPIPE and SIGXFSZ: Python ignores them, and an ignored signal stays ignored in what it starts.
        defaults = [signal.SIGPIPE, signal.SIGXFSZ]
        pid = os.posix_spawnp(command[0], command, os.environ, setsid=True, setsigdef=defaults)
    except OSError as error:
        say(f"cannot run {command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126
    why = watch.until(pid, pidfds)
    code = watch.ended.get(pid)
    say(why if code is None else f"{why} with {code}")
    watch.end_all(time.monotonic() + grace_s)
    return _shell_status(watch.ended[pid]) if why == EXITED else 0


def guard(inner: int, owner_fd: int, grace_s: float) -> int:
    """The outer process: pass a request to end on to the inner one; clean up what that one leaves if it is killed."""
    watch = Watch()
    if watch.until(inner, [owner_fd]) == ASKED:
        os.kill(inner, signal.SIGTERM)
    deadline = time.monotonic() + grace_s + 2  # the inner one does the work and needs its own grace for it
    while inner not in watch.ended and time.monotonic() < deadline:
        watch.nap()
        if watch.hurried:
            send(inner, NOW)
    watch.end_all(deadline)
    return _shell_status(watch.ended[inner])


class Watch:
    """A subreaper's eyes and hands: it hears signals, collects ended children and ends the remaining ones.

    Attributes:
        ended: exit code of each child that was collected (negative: a signal).
        hurried: whether the grace was called off.
    """

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        self.hurried = False
        if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
            sys.exit("supervise: this kernel cannot adopt orphans (PR_SET_CHILD_SUBREAPER)")
        self._heard, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*ENDS, NOW, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def until(self, child: int, pidfds: list[int]) -> str:
        """Sleep until a child ends, one of the watched processes ends or a signal asks; returns which it was."""
        while self.reap() and child not in self.ended:
            ready, _, _ = select.select([*pidfds, self._heard], [], [])
            if self._heard in ready and not {*ENDS, NOW}.isdisjoint(self._listen()):
                return ASKED
            if not set(ready).isdisjoint(pidfds):
                return ORPHANED
        return EXITED

    def reap(self) -> bool:
        """Collect the children that have ended; returns whether others remain."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                self.ended[pid] = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def nap(self) -> None:
        """Collect children, and sleep up to 50 ms or until the next signal."""
        if self.reap() and select.select([self._heard], [], [], 0.05)[0]:
            self._listen()

    def end_all(self, deadline: float) -> None:
        """SIGTERM each descendant once, SIGKILL from ``deadline`` (monotonic seconds) on, until none is left."""
        told: set[int] = set()
        while self.reap():
            late = self.hurried or time.monotonic() >= deadline
            for pid in descendants(os.getpid()):
                if late or pid not in told:
                    told.add(pid)
                    send(pid, signal.SIGKILL if late else signal.SIGTERM)
            self.nap()

    def _listen(self) -> bytes:
        numbers = os.read(self._heard, 256)
        self.hurried = self.hurried or NOW in numbers
        return numbers


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def descendants(pid: int) -> list[int]:
    """Every process below one, parents before their children."""
    found = children(pid)
    for below in found:  # grows while it is walked
        found += children(below)
    return found


def children(pid: int) -> list[int]:
    """The direct children of a process, started by any of its threads; none if it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def say(text: str) -> None:
    """Write a line to the log; a full disk or a closed pipe must not keep the processes from being ended."""
    try:
        os.write(2, f"supervise: {text}\n".encode())
    except OSError:
        return


def _parse(argv: list[str]) -> tuple[int, float, list[str]]:
    try:
        split = argv.index("--")
        owner, *rest = argv[:split]
        (grace_s,) = rest or ["10"]
        first, *others = argv[split + 1 :]
        return int(owner), float(grace_s), [first, *others]
    except ValueError:
        sys.exit(f"supervise: cannot read {argv}\n{USAGE}")


def _shell_status(code: int) -> int:
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
