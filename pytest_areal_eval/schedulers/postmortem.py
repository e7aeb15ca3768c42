"""Why a process ended, from its exit status, the end of its log and the kernel's count of out-of-memory kills."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from pytest_areal_eval.schedulers.base import Lost

ADDRESS_IN_USE = "address already in use"
"""Starts the reason of an instance whose port was taken between pick and bind: another port may work."""

LINE_LIMIT = 300
LAST_LINE = "; last log line: "


def explain(status: int, log_tail: str, *, seconds: float, oom: bool = False) -> tuple[Lost, int, str]:
    """Say what became of a process.

    Args:
        status: as ``subprocess`` or a shell gives it; -9 and 137 are both SIGKILL.
        log_tail: the last lines of its log.
        seconds: how long it ran.
        oom: the kernel has killed some process for lack of memory at about that time.

    Returns:
        the kind of end, the exit code (negative: a signal), and a reason for a person.
    """
    code = 128 - status if status > 128 else status
    lines = [line for line in log_tail.splitlines() if line.strip()]
    lost, reason = _end(code, oom)
    reason = f"{reason} after {seconds:.1f} s"
    if code > 0 and any(ADDRESS_IN_USE in line.lower() for line in lines):
        reason = f"{ADDRESS_IN_USE}; {reason}"
    said = [line for line in lines if not line.startswith("supervise: the ")]
    if said:
        last = said[-1].strip()
        reason = f"{reason}{LAST_LINE}{last if len(last) <= LINE_LIMIT else last[:LINE_LIMIT] + '…'}"
    return lost, code, reason


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory, machine-wide; 0 where it does not count them."""
    try:
        counters = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    found = re.search(r"^oom_kill (\d+)$", counters, re.MULTILINE)
    return int(found[1]) if found else 0


def _end(code: int, oom: bool) -> tuple[Lost, str]:
    if code == -signal.SIGKILL:
        if oom:
            return Lost.OOM, "killed by the kernel (out of memory)"
        return Lost.KILLED, "killed by SIGKILL (perhaps out of memory)"
    if code < 0:
        return Lost.KILLED, f"killed by {_signal_name(-code)}"
    if code > 0 and oom:
        return Lost.EXITED, f"exited with code {code} (the kernel has just killed a process: out of memory)"
    return Lost.EXITED, f"exited with code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
