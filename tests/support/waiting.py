"""Waiting for what other processes do, with a limit that fails the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(condition: Callable[[], object], what: str, limit_s: float = 8.0) -> float:
    """Wait for a condition; returns the seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s, f"not within {limit_s} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - started


def pids_in(file: Path) -> list[int]:
    """The process ids that a program writes to a file."""
    until(file.exists, f"{file}")
    return [int(pid) for pid in file.read_text().split()]
