"""What a thread that waits for the event loop hears meanwhile."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pytest_areal_eval.controller.episodes import Submission
from pytest_areal_eval.controller.loop import LoopThread
from pytest_areal_eval.controller.results import Results


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread("test")

    async def nothing() -> None:
        """Nothing to close."""

    yield made
    assert made.stop(5, nothing)


def one_to_come() -> Results:
    results = Results()
    results.expect(Submission(0, {}, None, "a", "e", None, {}, 1.0, None, [None], 1))
    return results


WAITS: dict[str, Callable[[LoopThread], object]] = {
    "call": lambda loop: loop.call(asyncio.sleep(8)),
    "call with a limit": lambda loop: loop.call(asyncio.sleep(8), 6),
    "results": lambda loop: one_to_come().wait(1, 6, None, str),
}


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_is_heard_where_another_thread_got_the_signal(loop: LoopThread, name: str) -> None:
    """The main thread's wait is not interrupted then."""
    waiting = threading.Event()

    def hit() -> None:
        waiting.wait(5)
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def wait() -> None:
        waiting.set()
        WAITS[name](loop)

    other = threading.Thread(target=hit)
    other.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() - began < 4
    other.join(5)


def test_an_end_in_time_gives_the_result_or_the_works_own_error(loop: LoopThread) -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    assert loop.call(asyncio.sleep(0.01, 5), 3) == 5
    with pytest.raises(TimeoutError, match="its own"):
        loop.call(fail())


def test_what_takes_too_long_is_cancelled(loop: LoopThread) -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        loop.call(work(), 0.05)
    assert ended.wait(5)
