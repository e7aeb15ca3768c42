"""What the benchmarks share: the line that says where they ran, Markdown tables, and a child process with its cost."""

from __future__ import annotations

import os
import platform
import select
import subprocess
import sys
import tempfile
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
        own_cpu_s: its user and system seconds.
        children_cpu_s: those of the processes that it waited for.
    """

    output: str
    started_at: float
    ended_at: float
    own_cpu_s: float
    children_cpu_s: float

    @property
    def cpu_s(self) -> float:
        """All of them."""
        return self.own_cpu_s + self.children_cpu_s

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
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # which costs pytest 0.3 s at every start
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started_at = time.monotonic()
        process = subprocess.Popen([*pin, *argv], cwd=cwd, env=environment, stdout=output, stderr=errors)
        with open(os.pidfd_open(process.pid), "rb") as ends:
            ended = select.select([ends], [], [], CHILD_LIMIT_S)[0]
        ended_at = time.monotonic()
        if not ended:
            process.kill()
        used = _cpu_s(process.pid)  # the kernel forgets it once it was waited for
        status = process.wait()
        for file in (output, errors):
            file.seek(0)
        told, complained = output.read(), errors.read()
    if not ended:
        raise SystemExit(f"no end within {CHILD_LIMIT_S:.0f} s: {' '.join(argv)}")
    if status not in expect:
        raise SystemExit(f"exit status {status}: {' '.join(argv)}\n{told[-3000:]}\n{complained[-3000:]}")
    return Finished(told, started_at, ended_at, *used)


def _cpu_s(pid: int) -> tuple[float, float]:
    """User and system seconds of a process, and of those that it waited for; see proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, children_user, children_system = (int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in fields[11:15])
    return user + system, children_user + children_system


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
