"""A TCP port for a server that is about to be started on this machine.

Invariant: the port is below the range that the kernel hands out by itself, nobody listens on it when it is picked, and
no other run of ours picks it while its lock is held.  A stranger may still take it before the server binds it; the
server's log then says ``ADDRESS_IN_USE``.
"""

from __future__ import annotations

import errno
import random
import socket
from contextlib import closing
from pathlib import Path

from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.schedulers import locks

LOWEST = 10_000
HIGHEST = 32_767
TRIES = 200

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def pick(
    lock_folder: Path, holder: str, lowest: int | None = None, highest: int | None = None
) -> tuple[int, locks.Lock]:
    """Pick a free port and lock it.

    Args:
        lock_folder: where runs on this machine keep their locks.
        holder: who takes it, for other runs' messages.
        lowest: the lowest port to take; 10,000 by default.
        highest: the highest one; by default the last below the ephemeral range.

    Raises:
        SchedulerError: 200 draws found none.
    """
    lowest = LOWEST if lowest is None else lowest
    highest = _below_ephemeral() if highest is None else highest
    draw = random.SystemRandom()  # the shared generator may be seeded alike in two runs
    for _ in range(TRIES):
        port = draw.randint(lowest, highest)
        lock = locks.try_lock(lock_folder, f"port-{port}", holder)
        if lock is None:
            continue
        if _nobody_listens(port):
            return port, lock
        with lock:
            lock.path.unlink()
    raise SchedulerError(
        f"No free TCP port for {holder}: {TRIES} draws from {lowest}-{highest} are all in use.",
        "See who listens: ss -ltn",
    )


def _nobody_listens(port: int) -> bool:
    """Whether the port can be bound on every IPv4 address, and so on any one of them."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def _below_ephemeral() -> int:
    """The last port below the kernel's own range; where that range leaves no room, the usual one's."""
    try:
        last = int(_EPHEMERAL.read_text().split()[0]) - 1
    except FileNotFoundError:
        return HIGHEST
    return min(last, HIGHEST) if last >= LOWEST + TRIES else HIGHEST
