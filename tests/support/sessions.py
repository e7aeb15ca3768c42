"""Whole pytest sessions in processes of their own, and all that they start; for faults that end processes."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.plugins import without

TESTS = Path(__file__).parents[1]
TINY = TESTS.parent / "models/tiny-math"
MARK = "AREAL_EVAL_TEST_MARK"

STANDIN_CONFTEST = """
import pytest
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from standin.engine import StandinEngine

@pytest.fixture(scope="session")
def controller(scheduler):
    settings = ControllerSettings({settings})
    made = RolloutController(StandinEngine(arguments={arguments!r}), scheduler, settings=settings)
    made.initialize()
    yield made
    made.destroy()
"""


@dataclass
class Session:
    """A folder with a suite, and the pytest process that runs it.

    Attributes:
        path: the folder.
        mark: in the environment of all that the session starts.
        process: pytest, once started.
    """

    path: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    process: subprocess.Popen[str] | None = None

    def write(self, source: str, **files: str) -> Session:
        """Write ``test_evals.py`` and other files (``conftest``: ``conftest.py``)."""
        (self.path / "pytest.ini").write_text("[pytest]\n")
        for name, text in {"test_evals": source, **files}.items():
            (self.path / f"{name}.py").write_text(text, encoding="utf-8")
        return self

    def start(self, *args: str, before: Sequence[str] = (), **popen: Any) -> Session:
        """Start pytest, in a session of its own, with its output in ``out.txt``; ``before`` goes before the command."""
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_")}
        environment |= {MARK: self.mark, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        with open(self.path / "out.txt", "wb") as out:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "pytest", "-W", "error", *without().split(), *args],
                cwd=self.path, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                text=True, start_new_session=True, **popen,
            )  # fmt: skip
        return self

    def run(self, *args: str, limit_s: float = 60) -> int:
        """Start pytest and wait for it; returns its exit status."""
        return self.start(*args).wait(limit_s)

    def wait(self, limit_s: float = 60) -> int:
        """Wait for pytest's end; returns its exit status."""
        assert self.process is not None
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"pytest still runs after {limit_s} s:\n{self.output}") from None

    def send(self, number: signal.Signals) -> None:
        """Signal pytest alone."""
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def output(self) -> str:
        """All that pytest has printed so far."""
        return (self.path / "out.txt").read_text(encoding="utf-8", errors="replace")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The journal's episodes, of whole lines, so far."""
        files = [file for folder in self._runs() for file in sorted(folder.glob("episodes*.jsonl"))]
        lines = (json.loads(line) for file in files for line in file.read_text().split("\n")[:-1])
        return [line for line in lines if line["kind"] == "episode"]

    def run_json(self) -> dict[str, Any]:
        """What the run says of itself."""
        (folder,) = self._runs()
        found: dict[str, Any] = json.loads((folder / "run.json").read_text())
        return found

    def _runs(self) -> list[Path]:
        return sorted({file.parent.resolve() for file in self.path.glob("eval-results/*/run.json")})

    def processes(self, containing: str = "") -> dict[int, str]:
        """Command lines of what the session has started and is alive, by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() not in (folder / "environ").read_bytes():
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:  # gone meanwhile
                continue
            if containing in command and int(folder.name) != os.getpid():
                found[int(folder.name)] = command
        return found

    def leaves_nothing(self, limit_s: float = 15) -> float:
        """Check that nothing of the session is alive any more; returns the seconds that it took."""
        began = time.monotonic()
        while left := self.processes():
            assert time.monotonic() - began < limit_s, f"left after {limit_s} s: {left}"
            time.sleep(0.05)
        return time.monotonic() - began

    def end(self) -> None:
        """Kill whatever a failed test has left."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.process is not None:
            self.process.wait(10)


def standin_conftest(arguments: Sequence[str] = (), settings: str = "max_concurrency=4") -> str:
    """A conftest whose controller starts one stand-in server."""
    return STANDIN_CONFTEST.format(arguments=list(arguments), settings=settings)
