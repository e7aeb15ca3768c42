"""supervise.py leaves nothing behind, whoever is killed first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import pids_in, until

from pytest_areal_eval.schedulers import supervise
from pytest_areal_eval.schedulers.processes import running

PROGRAMS = Path(__file__).parents[1] / "programs"
PYTHON = (sys.executable, "-I", "-S")
FAMILY = (*PYTHON, str(PROGRAMS / "family.py"))


def command(owner: int | str, *argv: str, grace_s: float = 10.0) -> list[str]:
    return [*PYTHON, supervise.__file__, str(owner), str(grace_s), "--", *argv]


def start(*argv: str, grace_s: float = 10.0) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(os.getpid(), *argv, grace_s=grace_s), stdin=subprocess.DEVNULL)


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Where a family writes its pids; what a failed test leaves is killed."""
    yield tmp_path / "pids"
    if (tmp_path / "pids").exists():
        for pid in pids_in(tmp_path / "pids"):
            supervise.send(pid, signal.SIGKILL)


@pytest.mark.parametrize("status", [0, 7])
def test_the_exit_status_is_the_commands(status: int) -> None:
    assert start("sh", "-c", f"exit {status}").wait(10) == status


def test_a_command_killed_by_a_signal_gives_128_and_the_signal() -> None:
    assert start("sh", "-c", "kill -KILL $$").wait(10) == 137


def test_a_command_that_does_not_exist_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert start("no-such-command").wait(10) == 127
    assert "cannot run no-such-command: No such file" in capfd.readouterr().err


def test_a_command_that_may_not_run_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert start(str(tmp_path)).wait(10) == 126
    assert "Permission denied" in capfd.readouterr().err


@pytest.mark.parametrize("argv", [[], ["12"], ["12", "--"], ["x", "--", "true"], ["12", "1", "2", "--", "true"]])
def test_a_wrong_command_line_is_shown_with_the_usage(argv: list[str]) -> None:
    done = subprocess.run([*PYTHON, supervise.__file__, *argv], capture_output=True, text=True)
    assert done.returncode == 1
    assert supervise.USAGE in done.stderr


def test_an_owner_that_is_not_the_parent_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(command(1, "touch", str(tmp_path / "ran")), capture_output=True, text=True)
    assert done.returncode == 1
    assert "was gone before the start" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_no_signal_is_ignored_or_blocked_in_the_command() -> None:
    """Python ignores SIGPIPE, and supervise blocks some while it starts: the command must inherit neither."""
    argv = command(os.getpid(), "grep", "-hE", "SigBlk|SigIgn", "/proc/self/status")
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    blocked, ignored = (int(line.split()[1], 16) for line in done.stdout.splitlines())
    assert blocked == 0
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_a_daemon_ends_when_the_command_does(out: Path) -> None:
    """C92: what a server daemonized (double fork, own session) must not outlive it."""
    assert start(*FAMILY, str(out), "3").wait(10) == 3
    assert not any(map(running, pids_in(out)))


def test_sigterm_ends_the_command_and_its_daemon(out: Path) -> None:
    process = start(*FAMILY, str(out))
    family = pids_in(out)
    process.terminate()
    assert process.wait(5) == 0
    assert not any(map(running, family))


def test_a_sigterm_during_the_start_is_not_lost() -> None:
    """From the fork to the first handler nobody could hear it; a lost one would cost the whole grace of 10 s."""
    for delay_s in (0.0, 0.008, 0.012, 0.016, 0.02, 0.03):
        process = start("sleep", "300")
        time.sleep(delay_s)
        process.terminate()
        assert process.wait(5) in (0, -signal.SIGTERM)


def test_one_that_ignores_sigterm_is_killed_after_the_grace(out: Path) -> None:
    process = start(*FAMILY, str(out), "stubborn", grace_s=0.5)
    family = pids_in(out)
    process.terminate()
    started = time.monotonic()
    assert process.wait(5) == 0
    assert 0.4 < time.monotonic() - started < 3
    assert not any(map(running, family))


def test_sigusr1_ends_the_grace(out: Path) -> None:
    """A cluster's manager that is told to be quick cannot send SIGKILL without reaching the supervisor first."""
    with start(*FAMILY, str(out), "stubborn", grace_s=60) as supervisor:
        pids_in(out)
        supervisor.terminate()
        time.sleep(0.2)
        assert all(map(running, pids_in(out)))
        supervisor.send_signal(signal.SIGUSR1)
        supervisor.wait(3)
    assert not any(map(running, pids_in(out)))


def test_a_stopped_command_is_killed_after_the_grace(out: Path) -> None:
    process = start(*FAMILY, str(out), grace_s=0.3)
    family = pids_in(out)
    os.kill(family[0], signal.SIGSTOP)
    process.terminate()
    assert process.wait(5) == 0
    assert not any(map(running, family))


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_each_of_the_two_processes_cleans_up_for_the_other(which: str, out: Path) -> None:
    """A cluster manager may SIGKILL just its direct child."""
    process = start(*FAMILY, str(out))
    family = pids_in(out)
    (inner,) = supervise.children(process.pid)
    os.kill(process.pid if which == "outer" else inner, signal.SIGKILL)
    until(lambda: not any(map(running, [*family, inner])), "the family's end")
    assert process.wait(5) == (-signal.SIGKILL if which == "outer" else 137)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("how", ["", "stubborn"])
def test_everything_ends_with_the_owner(number: signal.Signals, how: str, out: Path) -> None:
    """C92: the owner can be killed in a way that runs none of its code; a fork of it that lives on changes nothing."""
    argv = command("OWNER", *FAMILY, str(out), how, grace_s=0.3)
    code = (
        "import os, subprocess, sys, time\n"
        "argv = [str(os.getpid()) if word == 'OWNER' else word for word in sys.argv[1:]]\n"
        "subprocess.Popen(argv, start_new_session=True)\n"
        "if os.fork() == 0: os.setsid(); time.sleep(4); os._exit(0)\n"
        "time.sleep(300)"
    )
    with subprocess.Popen([*PYTHON, "-c", code, *argv], stdin=subprocess.DEVNULL) as owner:
        family = pids_in(out)
        owner.send_signal(number)
        owner.wait(5)
    took = until(lambda: not any(map(running, family)), "the family's end")
    assert took < 3
