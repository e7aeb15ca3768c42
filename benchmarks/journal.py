"""What the journal costs: the caller's microseconds for an append, and the seconds to read 100,000 episodes back.

python benchmarks/journal.py [--episodes 20000] [--read 100000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_areal_eval.api import Episode, EpisodeStatus
from pytest_areal_eval.journal import Answer, Journal, latest_episodes, read_episodes
from pytest_areal_eval.journal.record import encode_line, episode_to_dict
from pytest_areal_eval.runs.history import History

_RESPONSE = {"text": "x" * 600, "input_len": 87, "output_len": 211, "gives_ids": False, "output_tokens": []}


def main() -> None:
    """Run both measurements and print one line for each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--episodes", type=int, default=20_000, help="appended for each size")
    options.add_argument("--read", type=int, default=100_000, help="read back")
    options.add_argument("--folder", type=Path, default=None, help="on the file system to measure")
    chosen = options.parse_args()
    for line_bytes in (1024, 8192):
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            print(append_cost(Path(folder), line_bytes, chosen.episodes))
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        print(read_cost(Path(folder), chosen.read))


def append_cost(folder: Path, line_bytes: int, count: int) -> str:
    """Append ``count`` episodes whose lines have ``line_bytes`` bytes; flushed to the disk every 0.2 s meanwhile."""
    taken_us = []
    episodes = [_episode(index, line_bytes) for index in range(count)]
    with Journal.open(folder, sync_interval_s=0.2) as journal:
        for episode in episodes:
            started = time.perf_counter()
            journal.append(episode)
            taken_us.append((time.perf_counter() - started) * 1e6)
    median, p99 = statistics.median(taken_us), statistics.quantiles(taken_us, n=100)[98]
    return (
        f"append {line_bytes:5d} B: median {median:.1f} us, mean {statistics.fmean(taken_us):.1f} us, "
        f"p99 {p99:.1f} us, worst {max(taken_us) / 1e3:.1f} ms ({count:,} episodes)"
    )


def read_cost(folder: Path, count: int) -> str:
    """Read ``count`` episodes of 1 kB with both readers."""
    with Journal.open(folder) as journal:
        for index in range(count):
            journal.append_answer(Answer("test_gsm8k", f"{index:06d}", 0, 1, "0123456789abcdef", _RESPONSE))
            journal.append(_episode(index, 1024))
    lines, streamed = _timed(lambda: sum(1 for _ in read_episodes(folder)))
    latest, in_memory = _timed(lambda: len(latest_episodes(folder)))
    if lines != count or latest != count:
        raise RuntimeError(f"wrote {count} episodes, read {lines} lines and {latest} episodes")
    (folder / "run.json").write_text("{}")

    def skip() -> int:
        history = History("resume", folder)
        return sum(history.owes("test_gsm8k", f"{index:06d}", 1) for index in range(count))

    owed, skipped = _timed(skip)
    if owed:
        raise RuntimeError(f"{owed} of {count} finished episodes would run again")
    return (
        f"read {count:,}: {streamed} streamed, {in_memory} as latest_episodes, {skipped} to skip them in a resumed run"
    )


def _timed(work: Callable[[], int]) -> tuple[int, str]:
    """What the work gives, and its seconds by the clock and of the CPU, which other programs change less."""
    started, cpu = time.perf_counter(), time.process_time()
    given = work()
    return given, f"{time.perf_counter() - started:.2f} s ({time.process_time() - cpu:.2f} s CPU)"


def _episode(index: int, line_bytes: int) -> Episode:
    def of(completion: str) -> Episode:
        return Episode(
            evaluation="test_gsm8k",
            item_id=f"{index:06d}",
            status=EpisodeStatus.SCORED,
            reward=1.0,
            metrics={"format": 1.0},
            prompt="Natalia sold clips to 48 of her friends. How many?",
            completion=completion,
            extracted="72",
            gold="72",
            stop_reason="stop",
            input_tokens=87,
            output_tokens=211,
            requests=1,
            attempts=1,
            latency_s=1.25,
            started_at=1764437405.25,
            replica="eval-rollout/0",
            seed=123456789,
        )

    return of("x" * (line_bytes - len(encode_line(episode_to_dict(of(""))))))


if __name__ == "__main__":
    main()
