"""The journal on disk: torn lines, killed writers, full disks, several writers."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_areal_eval.api import Episode, EpisodeStatus
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal import Journal, Problem, latest_episodes, merge_journals, read_episodes
from pytest_areal_eval.journal.record import encode_line, episode_to_dict
from pytest_areal_eval.journal.writer import journal_path

SCORED = EpisodeStatus.SCORED
ANY_TEXT = st.lists(st.characters() | st.sampled_from("\ud83d\ude00\x85\u2028\u2029\r\n\0"), max_size=30).map("".join)


def episode(item: int | str, index: int = 0, **fields: Any) -> Episode:
    return Episode(evaluation="e", item_id=str(item), index=index, status=SCORED, **fields)


def write(folder: Path, *episodes: Episode, writer: str = "main") -> Path:
    with Journal.open(folder, writer) as journal:
        for one in episodes:
            journal.append(one)
    return journal_path(folder, writer)


def keys(folder: Path, problems: list[Problem] | None = None) -> list[tuple[str, int]]:
    return [(record["item_id"], record["index"]) for record in read_episodes(folder, problems)]


def test_an_episode_can_be_read_as_soon_as_append_returns(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append(episode(1, completion="hello"))
        assert latest_episodes(tmp_path) == {("e", "1", 0): episode(1, completion="hello")}


def test_a_journal_is_appended_to_when_opened_again(tmp_path: Path) -> None:
    write(tmp_path, episode(1))
    write(tmp_path, episode(2))
    assert keys(tmp_path) == [("1", 0), ("2", 0)]


def test_repeats_of_an_item_stay_apart(tmp_path: Path) -> None:
    """C23, C25: K samples of an item collapsed to one."""
    write(tmp_path, *(episode(1, index, completion=f"answer {index}") for index in range(4)))
    assert [one.completion for one in latest_episodes(tmp_path).values()] == [f"answer {i}" for i in range(4)]


def test_the_last_write_of_an_episode_wins(tmp_path: Path) -> None:
    write(tmp_path, episode(1, reward=0.0), episode(2), episode(1, reward=1.0))
    assert latest_episodes(tmp_path)["e", "1", 0].reward == 1.0
    assert len(keys(tmp_path)) == 3


def test_between_files_the_later_write_wins_whatever_the_names(tmp_path: Path) -> None:
    write(tmp_path, episode(1, reward=0.0), writer="gw1")
    time.sleep(0.005)
    write(tmp_path, episode(1, reward=1.0))
    time.sleep(0.005)
    write(tmp_path, episode(2, reward=1.0))
    write(tmp_path, episode(3, reward=1.0), writer="gw0")
    assert {key[1]: one.reward for key, one in latest_episodes(tmp_path).items()} == {"1": 1.0, "2": 1.0, "3": 1.0}


def test_workers_files_are_added_whole_in_the_order_of_their_last_writes(tmp_path: Path) -> None:
    """A worker that stood in for one that crashed had the later word; torn lines stay apart from whole ones."""
    scored, lost = episode(1), dataclasses.replace(episode(1), status=EpisodeStatus.ENGINE_LOST, reward=None)
    main = write(tmp_path, lost, episode(2))
    with main.open("ab") as file:
        file.write(b'{"v":1,"ki')
    crashed, other = write(tmp_path, lost, writer="gw9"), write(tmp_path, scored, writer="gw10")
    with crashed.open("ab") as file:
        file.write(b'{"v":1,"kind"')
    os.utime(crashed, (1, 1))
    merge_journals(tmp_path)
    assert not crashed.exists()
    assert not other.exists()
    assert keys(tmp_path, problems := []) == [("1", 0), ("2", 0), ("1", 0), ("1", 0)]
    assert [problem.line for problem in problems] == [3, 5]
    assert latest_episodes(tmp_path, [])["e", "1", 0].status is SCORED
    before = main.read_bytes()
    merge_journals(tmp_path)
    assert main.read_bytes() == before


def test_a_clock_that_steps_back_does_not_change_the_last_line_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, episode(1, reward=0.0))
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    write(tmp_path, episode(1, reward=1.0))
    assert latest_episodes(tmp_path)["e", "1", 0].reward == 1.0


def test_every_byte_prefix_loads_to_a_prefix_of_the_episodes(tmp_path: Path) -> None:
    """C29c: a torn last line made the whole file unreadable."""
    texts = ("línea\nзавтра 😀", "\ud800\u2028")
    content = write(tmp_path, *(episode(i, completion=text) for i, text in enumerate(texts))).read_bytes()
    ends = [i for i, byte in enumerate(content) if byte == ord("\n")]
    cut = tmp_path / "cut.jsonl"
    for size in range(len(content) + 1):
        cut.write_bytes(content[:size])
        problems: list[Problem] = []
        whole = sum(end <= size for end in ends)  # a line that lacks only its newline counts
        assert [key[0] for key in keys(cut, problems)] == [str(i) for i in range(whole)]
        torn = size > 0 and size not in ends and content[size - 1] != ord("\n")
        assert [(p.line, p.torn) for p in problems] == ([(whole + 1, True)] if torn else [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(ANY_TEXT, min_size=1, max_size=5), st.floats(0, 1))
def test_any_journal_cut_anywhere_and_resumed_keeps_both_parts(tmp_path: Path, texts: list[str], cut_at: float) -> None:
    lines = [encode_line(episode_to_dict(episode(i, completion=text))) for i, text in enumerate(texts)]
    content = b"".join(lines)
    size = round(cut_at * len(content))
    path = journal_path(tmp_path)
    path.write_bytes(content[:size])
    before = list(latest_episodes(tmp_path, []).values())
    write(tmp_path, episode("resumed"))
    after = list(latest_episodes(tmp_path, []).values())
    assert after == [*before, episode("resumed")]
    assert [one.item_id for one in before] == [str(i) for i in range(len(before))]
    assert sum(map(len, lines[: len(before)])) <= size + 1


@pytest.mark.parametrize(
    "damage", [b"\x00" * 40, b"{", b"\xff\xfe", b"[]", b"null", b'{"kind":"episode"}', b'{"v":"1"}']
)
def test_a_corrupt_line_is_skipped_and_reported_with_its_place(tmp_path: Path, damage: bytes) -> None:
    path = write(tmp_path, episode(1), episode(2), episode(3))
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], damage, lines[2], b""]))
    problems: list[Problem] = []
    assert keys(tmp_path, problems) == [("1", 0), ("3", 0)]
    (problem,) = problems
    assert (problem.path, problem.line, problem.torn) == (path, 2, False)
    assert str(problem).startswith(f"{path}:2: ")


def test_a_corrupt_line_is_logged_where_nobody_asks_for_problems(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, episode(1))
    with path.open("ab") as file:
        file.write(b"rubbish\n")
    with caplog.at_level(logging.WARNING):
        assert len(latest_episodes(tmp_path)) == 1
    assert f"{path}:2: no journal line" in caplog.text


def test_a_line_that_breaks_the_schema_does_not_hide_the_good_one_before_it(tmp_path: Path) -> None:
    path = write(tmp_path, episode(1, reward=1.0))
    bad = episode_to_dict(episode(1)) | {"status": "unheard of"}
    with path.open("ab") as file:
        file.write(json.dumps(bad).encode() + b"\n")
    problems: list[Problem] = []
    assert latest_episodes(tmp_path, problems)["e", "1", 0].reward == 1.0
    assert "unheard of" in problems[0].reason


def test_lines_of_another_kind_are_no_episodes_and_no_problem(tmp_path: Path) -> None:
    path = write(tmp_path, episode(1))
    with path.open("ab") as file:
        file.write(b'{"v":1,"kind":"generation","item_id":"1"}\n')
    problems: list[Problem] = []
    assert (keys(tmp_path, problems), problems) == ([("1", 0)], [])


def test_a_newer_schema_is_refused_with_what_to_type(tmp_path: Path) -> None:
    journal_path(tmp_path).write_bytes(b'{"v":2,"kind":"episode"}\n')
    with pytest.raises(JournalError, match=r"episodes\.jsonl:1 was written in schema 2(.|\n)*pip install --upgrade"):
        keys(tmp_path)


def test_a_folder_copied_elsewhere_reads_the_same(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run, episode(1))
    write(run, episode(2), writer="gw0")
    copy = shutil.copytree(run, tmp_path / "elsewhere" / "copy")
    assert latest_episodes(copy) == latest_episodes(run)


def test_a_run_killed_before_its_first_episode_has_none(tmp_path: Path) -> None:
    """C28: a run that only started can be gone on with."""
    assert latest_episodes(tmp_path) == {}
    write(tmp_path)
    assert latest_episodes(tmp_path) == {}


def test_a_missing_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"there is no run at .*nowhere"):
        latest_episodes(tmp_path / "nowhere")


def test_threads_append_whole_lines(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:

        def append(item: int) -> None:
            for index in range(50):
                journal.append(episode(item, index, completion="x" * 5000))

        threads = [threading.Thread(target=append, args=(item,)) for item in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert journal.written == 400
    assert sorted(keys(tmp_path)) == sorted((str(item), index) for item in range(8) for index in range(50))


def test_a_write_that_the_kernel_cuts_short_is_finished_before_another_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_some = os.write

    def write_little(fd: int, data: bytes) -> int:
        time.sleep(0)
        return write_some(fd, data[:100])

    monkeypatch.setattr(os, "write", write_little)
    with Journal.open(tmp_path) as journal:

        def append(item: int) -> None:
            for index in range(20):
                journal.append(episode(item, index))

        threads = [threading.Thread(target=append, args=(item,)) for item in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    problems: list[Problem] = []
    assert (len(keys(tmp_path, problems)), problems) == (80, [])


def test_an_episode_that_is_no_json_does_not_end_the_journal(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        with pytest.raises(JournalError, match="reward is nan"):
            journal.append(episode(1, reward=float("nan")))
        journal.append(episode(2))
    assert keys(tmp_path) == [("2", 0)]


def test_appending_to_a_closed_journal_is_an_error(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.append(episode(1))


@pytest.mark.parametrize("writer", ["", "../x", "a b", "a.b"])
def test_a_writers_name_cannot_leave_the_folder(tmp_path: Path, writer: str) -> None:
    with pytest.raises(JournalError, match="named by letters"):
        Journal.open(tmp_path, writer)


def test_a_folder_that_cannot_hold_a_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"missing/episodes\.jsonl: No such file(.|\n)*--results-dir"):
        Journal.open(tmp_path / "missing")


def test_a_device_without_space_fails_the_first_append_and_every_later_one(tmp_path: Path) -> None:
    journal_path(tmp_path).symlink_to("/dev/full")
    journal = Journal.open(tmp_path)
    for _ in range(2):
        with pytest.raises(JournalError, match=r"No space left on device\. The 0 episodes(.|\n)*--results-dir"):
            journal.append(episode(1))
    journal.close()


FILLS_THE_DISK = """
import resource, sys
from pathlib import Path
from pytest_areal_eval.api import Episode, EpisodeStatus
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
journal = Journal.open(Path(sys.argv[1]))
errors = []
for item in range(10):
    try:
        journal.append(Episode(item_id=str(item), status=EpisodeStatus.SCORED, completion="x" * 300))
    except JournalError as error:
        errors.append(str(error))
journal.close()
print(journal.written, len(errors), len(set(errors)), errors[0].splitlines()[0])
"""


def run_script(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_that_cannot_grow_keeps_its_whole_lines_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """The write stops in the middle of a line; what follows must not be glued to it."""
    written, failed, messages, message = run_script(FILLS_THE_DISK, tmp_path).strip().split(" ", 3)
    assert (int(written) + int(failed), messages) == (10, "1")
    assert "File too large" in message
    assert f"The {written} episodes written before are safe" in message
    assert journal_path(tmp_path).stat().st_size == 2500
    write(tmp_path, episode("later"))
    problems: list[Problem] = []
    assert keys(tmp_path, problems) == [*((str(i), 0) for i in range(int(written))), ("later", 0)]
    assert [problem.line for problem in problems] == [int(written) + 1]


WRITES_FOR_EVER = """
import sys
from pathlib import Path
from pytest_areal_eval.api import Episode, EpisodeStatus
from pytest_areal_eval.journal import Journal
journal = Journal.open(Path(sys.argv[1]))
item = 0
while True:
    journal.append(Episode(item_id=str(item), status=EpisodeStatus.SCORED, completion="answer " * 3000))
    sys.stdout.write(f"{item}\\n"); sys.stdout.flush()
    item += 1
"""


def test_a_killed_writer_loses_nothing_that_append_returned_for(tmp_path: Path) -> None:
    """C20, C29c: SIGKILL at any moment."""
    process = subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout
    with process.stdout as announced:
        for _ in range(100):
            announced.readline()
        os.kill(process.pid, signal.SIGKILL)
        last = announced.read().splitlines()
    process.wait(10)
    problems: list[Problem] = []
    found = latest_episodes(tmp_path, problems)
    assert list(found) == [("", str(item), 0) for item in range(len(found))]
    assert len(found) >= (int(last[-1]) + 1 if last else 100)
    assert all(one.completion == "answer " * 3000 for one in found.values())
    assert all(problem.torn for problem in problems)


def test_the_disk_gets_episodes_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.set())
    with Journal.open(tmp_path, sync_interval_s=0.01) as journal:
        assert not synced.wait(0.05), "nothing was written yet"
        journal.append(episode(1))
        assert synced.wait(10)


def test_a_disk_that_fails_at_fsync_fails_the_next_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def fail(fd: int) -> None:
        failed.set()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    journal = Journal.open(tmp_path, sync_interval_s=0.01)
    journal.append(episode(1))
    assert failed.wait(10)
    journal._syncer.join(10)
    with pytest.raises(JournalError, match="Input/output error"):
        journal.append(episode(2))
    journal.close()


def test_a_disk_that_fails_at_the_last_fsync_fails_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", fail)
    journal = Journal.open(tmp_path)
    journal.append(episode(1))
    with pytest.raises(JournalError, match="Disk quota exceeded"):
        journal.close()


def test_a_disk_that_never_answers_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda fd: answer.wait(30))
    monkeypatch.setattr("pytest_areal_eval.journal.writer.CLOSE_TIMEOUT_S", 0.05)
    journal = Journal.open(tmp_path)
    journal.append(episode(1))
    with pytest.raises(JournalError, match="waiting for fsync"):
        journal.close()
    answer.set()
    journal._syncer.join(10)
    os.close(journal._fd)


def test_reading_a_large_journal_takes_flat_memory(tmp_path: Path) -> None:
    """C100: memory grew with the number of samples."""
    path = write(tmp_path, episode(1, completion="x" * 8000))
    path.write_bytes(path.read_bytes() * 2000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_episodes(tmp_path)) == 2000
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_reading_costs_microseconds_a_row(tmp_path: Path) -> None:
    """C22: skipping what is done was a slow loop.  10 us a row is the aim; the limit leaves room for a busy machine."""
    record = episode_to_dict(episode(0, completion="x" * 500))
    with journal_path(tmp_path).open("wb") as file:
        for item in range(10_000):
            file.write(encode_line(record | {"item_id": str(item)}))
    started = time.process_time()
    assert len(latest_episodes(tmp_path)) == 10_000
    assert time.process_time() - started < 0.6


def test_a_line_without_time_loses_to_one_with(tmp_path: Path) -> None:
    record = episode_to_dict(episode(1))
    old = {name: value for name, value in record.items() if name != "at"} | {"reward": 0.0}
    journal_path(tmp_path, "gw0").write_bytes(json.dumps(old).encode() + b"\n")
    write(tmp_path, dataclasses.replace(episode(1), reward=1.0))
    assert latest_episodes(tmp_path)["e", "1", 0].reward == 1.0
