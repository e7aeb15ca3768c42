"""Programs that are asked for something, and what they leave behind."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from support.waiting import until

from pytest_areal_eval.programs import ask


def test_an_answer_comes_with_its_status_and_its_messages() -> None:
    done = ask(["sh", "-c", "echo one; echo two >&2; exit 3"], 10.0)
    assert (done.returncode, done.stdout, done.stderr) == (3, "one\n", "two\n")


def test_what_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError):
        ask(["/no/such/program"], 10.0)


def test_a_wrapper_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A wrapper's own end leaves the program that it waits for, and which holds its pipes, alive."""
    pid = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        ask(["sh", "-c", f"sh -c 'echo $$ > {pid}; exec sleep 60' & wait"], 0.5)
    assert time.monotonic() - began < 10.0
    until(lambda: not _lives(int(pid.read_text())), "the end of what the wrapper started")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
