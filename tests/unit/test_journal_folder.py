"""A run's folder: names, run.json, the lock."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal import RunFolder
from pytest_areal_eval.journal.lock import LOCK_NAME, Holder


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Settings:
    results_dir: Path
    api_key: str
    max_new_tokens: int
    colour: Colour
    timeout_s: float


def make(results_dir: Path, hint: str = "tiny-math") -> RunFolder:
    return RunFolder.create(results_dir, name_hint=hint)


def finished(results_dir: Path) -> Path:
    with make(results_dir) as folder:
        folder.write_run({"model": "m"})
        return folder.path


def test_a_folder_is_named_for_its_time_and_model(tmp_path: Path) -> None:
    with make(tmp_path / "eval-results") as folder:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d_tiny-math_[0-9a-f]{4}", folder.path.name)
        assert folder.path.is_dir()


@pytest.mark.parametrize(
    ("hint", "part"), [("org/My Model:7b", "org-My-Model-7b"), ("../..", "run"), ("", "run"), ("x" * 99, "x" * 40)]
)
def test_a_name_cannot_leave_the_results(tmp_path: Path, hint: str, part: str) -> None:
    with make(tmp_path, hint) as folder:
        assert folder.path.parent == tmp_path
        assert folder.path.name.split("_")[1] == part


def test_folders_of_one_second_are_distinct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suffixes = iter(["aaaa", "aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(suffixes))
    monkeypatch.setattr("pytest_areal_eval.journal.folder._now", lambda: "2026-11-29T17-30-05")
    names = []
    for _ in range(2):
        with make(tmp_path) as folder:
            names.append(folder.path.name)
    assert names == ["2026-11-29T17-30-05_tiny-math_aaaa", "2026-11-29T17-30-05_tiny-math_bbbb"]


def test_latest_points_at_the_newest_run_and_moves_with_the_results(tmp_path: Path) -> None:
    finished(tmp_path / "a")
    newest = finished(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "latest").resolve().name == newest.name


def test_a_folder_called_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with make(tmp_path) as folder:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["latest", folder.path.name])


def test_results_where_a_file_is_are_refused_with_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"file: (File exists|Not a directory)(.|\n)*--results-dir=PATH"):
        make(tmp_path / "file")
    with pytest.raises(JournalError, match=r"cannot be written to .*file/below"):
        make(tmp_path / "file" / "below")


def test_results_that_cannot_be_written_are_refused() -> None:
    """/proc refuses to make folders even for root."""
    with pytest.raises(JournalError, match=r"/proc/self(.|\n)*--results-dir"):
        make(Path("/proc/self"))


def test_a_full_disk_leaves_no_empty_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(JournalError, match=r"No space left on device(.|\n)*--results-dir"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_run_json_keeps_settings_and_hides_secrets(tmp_path: Path) -> None:
    with make(tmp_path) as folder:
        settings = Settings(tmp_path, "very-secret", 512, Colour.RED, float("inf"))
        folder.write_run({"settings": settings, "none": None, "argv": ["--api-key", "very-secret"]})
        text = (folder.path / "run.json").read_text()
        assert "very-secret" not in text
        assert list(json.loads(text)) == ["argv", "none", "settings"]
        assert folder.read_run() == {
            "argv": ["--api-key", "***"],
            "none": None,
            "settings": {
                "api_key": "***",
                "colour": "red",
                "max_new_tokens": 512,
                "results_dir": str(tmp_path),
                "timeout_s": "inf",
            },
        }


def test_run_json_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = finished(tmp_path)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JournalError, match=r"run\.json: No space left(.|\n)*--results-dir"):
        RunFolder(path).write_run({"model": "other"})
    assert RunFolder(path).read_run() == {"model": "m"}
    assert [entry.name for entry in path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("content", "message"), [(b"{", "is damaged"), (b"[]", "no JSON object"), (b"\xff", "is damaged")]
)
def test_a_damaged_run_json_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(JournalError, match=f"run.json is damaged|{message}"):
        RunFolder(tmp_path).read_run()


def test_reading_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"run\.json: No such file"):
        RunFolder(tmp_path).read_run()
    with pytest.raises(JournalError, match="there is no run at"):
        RunFolder.open(tmp_path)


def test_a_run_in_progress_cannot_be_opened_twice(tmp_path: Path) -> None:
    """C28: two resumes of one run interleaved."""
    path = finished(tmp_path)
    with (
        RunFolder.open(path),
        pytest.raises(JournalError, match=rf"held by process {os.getpid()} on (.|\n)*rm .*run.lock"),
    ):
        RunFolder.open(path)
    RunFolder.open(path).close()
    assert not (path / LOCK_NAME).exists()


HOLDS = """
import sys, time
from pathlib import Path
from pytest_areal_eval.journal import RunFolder
folder = RunFolder.open(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_run_can_be_gone_on_with(tmp_path: Path) -> None:
    """C28: an OOM-killed run stayed started for ever."""
    path = finished(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(JournalError, match=f"held by process {process.pid} on {socket.gethostname()}"):
            RunFolder.open(path)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(JournalError, match="held by"):
            RunFolder.open(path)
    finally:
        process.kill()
        with process.stdout or open(os.devnull):
            pass
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # gone, but a zombie still
    assert (path / LOCK_NAME).exists()
    with RunFolder.open(path):
        assert Holder(**json.loads((path / LOCK_NAME).read_text())) == Holder.me()
    process.wait(10)


FORKS_AND_DIES = """
import os, sys, time
from pathlib import Path
from pytest_areal_eval.journal import RunFolder
folder = RunFolder.open(Path(sys.argv[1]))
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
os.close(1)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_a_dead_runs_lock(tmp_path: Path) -> None:
    path = finished(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", FORKS_AND_DIES, str(path)], stdout=subprocess.PIPE, timeout=30, check=True
    )
    try:
        RunFolder.open(path).close()
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


def test_a_lock_that_its_holder_removes_meanwhile_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished(tmp_path)
    lock = fcntl.flock
    opened: list[int] = []

    def remove_then_lock(fd: int, operation: int) -> None:
        opened.append(fd)
        if len(opened) == 1:
            (path / LOCK_NAME).unlink()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_then_lock)
    with RunFolder.open(path):
        assert len(opened) == 2
        with pytest.raises(JournalError, match="held by process"):
            RunFolder.open(path)


@pytest.fixture
def no_file_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system such as Lustre mounted without flock."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("no_file_locks")
def test_without_file_locks_a_living_process_still_holds_and_a_dead_one_does_not(tmp_path: Path) -> None:
    path = finished(tmp_path)
    with RunFolder.open(path), pytest.raises(JournalError, match="held by process"):
        RunFolder.open(path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(30)
    (path / LOCK_NAME).write_text(json.dumps({"host": socket.gethostname(), "pid": dead.pid, "started": 5}))
    RunFolder.open(path).close()


def test_a_later_process_with_the_same_number_holds_nothing(tmp_path: Path) -> None:
    path = finished(tmp_path)
    (path / LOCK_NAME).write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "started": 1}))
    RunFolder.open(path).close()


def test_a_run_of_another_host_is_held_until_someone_says_it_is_gone(tmp_path: Path) -> None:
    path = finished(tmp_path)
    (path / LOCK_NAME).write_text('{"host": "node-17", "pid": 1, "started": 5}')
    with pytest.raises(JournalError, match=r"process 1 on node-17\n.*rm "):
        RunFolder.open(path)
    (path / LOCK_NAME).unlink()
    RunFolder.open(path).close()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": 1}'])
def test_a_lock_cut_off_while_it_was_written_holds_nothing(tmp_path: Path, content: str) -> None:
    path = finished(tmp_path)
    (path / LOCK_NAME).write_text(content)
    RunFolder.open(path).close()


def test_a_held_run_can_be_read(tmp_path: Path) -> None:
    with make(tmp_path) as folder:
        folder.write_run({"model": "m"})
        assert RunFolder(folder.path).read_run() == {"model": "m"}
