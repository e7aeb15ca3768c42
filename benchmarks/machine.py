"""What the benchmarks share: the line that says where they ran, Markdown tables, and a child process with its cost."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHILD_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Finished:
    """A child process that ended.

    Attributes:
        output: its standard output.
        started_at, ended_at: ``time.monotonic()`` at both ends.
        cpu_s: user and system seconds of it and of the processes that it waited for.
    """

    output: str
    started_at: float
    ended_at: float
    cpu_s: float

    @property
    def wall_s(self) -> float:
        """Seconds from start to end."""
        return self.ended_at - self.started_at


def run(argv: Sequence[str], *, cwd: Path = ROOT, core: int | None = None, expect: Sequence[int] = (0,)) -> Finished:
    """Run a command to its end.

    Args:
        argv: the command.
        cwd: its working directory.
        core: the one core that it and its children may use; None for any.
        expect: exit statuses that are no failure.

    Raises:
        SystemExit: another exit status, with the end of its output, or no end within ``CHILD_LIMIT_S``.
    """
    pin = ["taskset", "-c", str(core)] if core is not None else []
    before, started_at = _children_cpu_s(), time.monotonic()
    try:
        process = subprocess.run([*pin, *argv], cwd=cwd, timeout=CHILD_LIMIT_S, text=True, capture_output=True)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"no end within {CHILD_LIMIT_S:.0f} s: {' '.join(argv)}") from None
    ended_at = time.monotonic()
    if process.returncode not in expect:
        tail = f"{process.stdout[-3000:]}\n{process.stderr[-3000:]}"
        raise SystemExit(f"exit status {process.returncode}: {' '.join(argv)}\n{tail}")
    return Finished(process.stdout, started_at, ended_at, _children_cpu_s() - before)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pytest_command(*arguments: str | Path) -> list[str]:
    """``python -m pytest`` as users run it, without the plugins that this repository's own tests use."""
    others = (
        "randomly",
        "asyncio",
        "xdist",
        "timeout",
        "pytest_cov",
        "html",
        "rerunfailures",
        "split",
        "hypothesispytest",
        "langsmith_plugin",
    )
    off = [part for name in (*others, "cacheprovider") for part in ("-p", f"no:{name}")]
    return [sys.executable, "-m", "pytest", *off, *map(str, arguments)]


def free_load() -> str:
    """The load average of the last minute, as text."""
    return f"{os.getloadavg()[0]:.1f}"


def header(*packages: str) -> str:
    """Date, cores, processor, load, and versions of Python, pytest and ``packages``."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("pytest", *packages))
    return (
        f"{date.today()}, {os.cpu_count()} cores ({processor()}), load {free_load()}, "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, {versions}"
    )


def processor() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
