"""The controller against an engine in this process: how many are in flight, in which order, and what waiting means."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from standin.engine import LocalEngine
from support.waiting import until

from pytest_areal_eval.api import Episode, EpisodeStatus, ModelRequest, Rollout
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.errors import JournalError


class Ask:
    """One request; the reward is whether the answer says 42."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        reply = await engine.chat([{"role": "user", "content": data["q"]}])
        return float("42" in reply.text)


class Gate:
    """Answers only when it is told to."""

    def __init__(self) -> None:
        self.opened: asyncio.Event | None = None

    async def __call__(self, request: ModelRequest) -> str:
        if self.opened is None:
            self.opened = asyncio.Event()
        await self.opened.wait()
        return "42"


@contextmanager
def running(
    engine: LocalEngine | None = None, on_episode: Any = None, **settings: Any
) -> Iterator[tuple[RolloutController, LocalEngine]]:
    engine = engine or LocalEngine()
    chosen = ControllerSettings(**settings)
    with RolloutController(engine, settings=chosen, on_episode=on_episode) as controller:
        controller.initialize()
        yield controller, engine


def asked(engine: LocalEngine) -> list[str]:
    return [request.messages[0]["content"] for request in engine.requests if request.messages]


async def pausing(request: ModelRequest) -> str:
    await asyncio.sleep(0.01)
    return "42"


# In flight


def test_exactly_the_asked_number_of_episodes_is_in_flight() -> None:
    """C85: neither the HTTP client nor the pool has a lower limit of its own."""
    with running(LocalEngine(pausing), max_concurrency=97) as (controller, engine):
        ids = [controller.submit({"q": str(i)}, Ask()) for i in range(400)]
        controller.wait(ids=ids, timeout=30)
    assert engine.peak == 97


def test_the_limit_counts_episodes_not_groups() -> None:
    with running(LocalEngine(pausing), max_concurrency=10) as (controller, engine):
        ids = [controller.submit({"q": str(i)}, Ask(), group_size=8) for i in range(10)]
        rollouts = controller.wait(ids=ids, timeout=30)
    assert engine.peak == 10
    assert [len(r.episodes) for r in rollouts] == [8] * 10
    assert [e.index for e in rollouts[3].episodes] == list(range(8))


def test_without_a_limit_the_engine_says_how_many() -> None:
    with running(LocalEngine(pausing, concurrency=23)) as (controller, engine):
        controller.rollout_batch([{"q": str(i)} for i in range(100)], Ask())
    assert engine.peak == 23


def test_items_start_in_the_order_of_submission() -> None:
    with running(max_concurrency=1) as (controller, engine):
        ids = [controller.submit({"q": str(i)}, Ask()) for i in range(50)]
        controller.wait(ids=ids, timeout=30)
    assert asked(engine) == [str(i) for i in range(50)]


def test_pause_starts_no_further_episode() -> None:
    with running() as (controller, engine):
        controller.pause()
        task = controller.submit({"q": "1"}, Ask())
        with pytest.raises(TimeoutError):
            controller.wait(ids=[task], timeout=0.1)
        assert not engine.requests
        controller.resume()
        assert controller.wait(ids=[task], timeout=10)[0].reward == 1.0


# Waiting


def test_rollouts_come_in_the_order_of_the_ids_asked_for() -> None:
    with running() as (controller, _):
        ids = [controller.submit({"q": str(i)}, Ask(), item_id=f"row-{i}") for i in range(20)]
        rollouts = controller.wait(ids=ids[::-1], timeout=10)
    assert [r.item_id for r in rollouts] == [f"row-{i}" for i in reversed(range(20))]
    assert [r.item["q"] for r in rollouts] == [str(i) for i in reversed(range(20))]


def test_waiting_by_count_hands_each_rollout_out_once() -> None:
    with running() as (controller, _):
        ids = [controller.submit({"q": str(i)}, Ask()) for i in range(10)]
        first = controller.wait(4, timeout=10)
        rest = controller.wait(timeout=10)
    assert [r.task_id for r in first] == sorted(r.task_id for r in first)
    assert sorted(r.task_id for r in first + rest) == ids


def test_a_time_out_names_the_oldest_item_and_keeps_what_is_done() -> None:
    async def answer(request: ModelRequest) -> str:
        await asyncio.sleep(60 if request.messages and request.messages[0]["content"] == "slow" else 0)
        return "42"

    with running(LocalEngine(answer)) as (controller, _):
        controller.submit({"q": "slow"}, Ask(), item_id="the-slow-one")
        controller.submit({"q": "fast"}, Ask())
        with pytest.raises(TimeoutError, match=r"waited 0\.3 s for 2 rollouts and got 1; the oldest, 'the-slow-one'"):
            controller.wait(2, timeout=0.3)
        assert [r.item["q"] for r in controller.wait(1, timeout=1)] == ["fast"]


@pytest.mark.parametrize("count", [0, -3])
def test_a_count_that_is_not_positive_is_refused(count: int) -> None:
    with running() as (controller, _), pytest.raises(ValueError, match=f"count must be positive, got {count}"):
        controller.wait(count)


def test_a_rollout_that_two_threads_wait_for_goes_to_one_and_the_other_is_told() -> None:
    with running(LocalEngine(pausing)) as (controller, _), ThreadPoolExecutor(2) as threads:
        task = controller.submit({"q": "1"}, Ask())
        waiting = [threads.submit(controller.wait, timeout=5, ids=[task]) for _ in range(2)]
        ended = [one.exception() for one in waiting]
        assert [type(error) for error in ended if error is not None] == [ValueError]
        assert "was handed out already" in "".join(map(str, ended))
        with pytest.raises(ValueError, match="name a task twice"):
            controller.wait(ids=[task, task])


def test_waiting_for_more_than_is_outstanding_is_refused() -> None:
    with running() as (controller, _):
        controller.submit({"q": "1"}, Ask())
        with pytest.raises(ValueError, match="cannot wait for 2 rollouts: only 1 are outstanding"):
            controller.wait(2, timeout=5)


def test_a_rollout_goes_to_its_callback_alone() -> None:
    seen: list[Rollout] = []
    with running() as (controller, _):
        task = controller.submit({"q": "1"}, Ask(), callback=seen.append)
        until(lambda: len(seen) == 1, "the callback")
        with pytest.raises(ValueError, match="has a callback"):
            controller.wait(ids=[task])
    assert seen[0].task_id == task


def test_on_episode_is_called_before_the_rollout_is_announced() -> None:
    order: list[str] = []

    def note(episode: Episode) -> None:
        order.append(f"episode {episode.index}")

    with running(on_episode=note, max_concurrency=1) as (controller, _):
        controller.submit({"q": "1"}, Ask(), group_size=2, callback=lambda rollout: order.append("rollout"))
        until(lambda: "rollout" in order, "the callback")
    assert order == ["episode 0", "episode 1", "rollout"]


def test_submissions_may_come_from_several_threads() -> None:
    with running() as (controller, _):
        ids: list[int] = []
        threads = [
            threading.Thread(target=lambda: ids.extend(controller.submit({"q": "1"}, Ask()) for _ in range(50)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 200
        assert len(controller.wait(ids=ids, timeout=30)) == 200


# Limits and cancelling


def test_a_time_out_frees_the_slot_and_says_what_it_waited_for() -> None:
    """C80: the item that never answers is ended, named, and the others go on."""

    async def answer(request: ModelRequest) -> str:
        await asyncio.sleep(60 if request.messages and request.messages[0]["content"] == "hangs" else 0)
        return "42"

    with running(LocalEngine(answer), max_concurrency=1, episode_timeout_s=0.3) as (controller, engine):
        ids = [controller.submit({"q": q}, Ask()) for q in ("hangs", "b", "c")]
        late, *others = controller.wait(ids=ids, timeout=10)
    assert late.episodes[0].status is EpisodeStatus.TIMEOUT
    assert "no result within 0.3 s: request 1 was unanswered (attempt 1 on local)" in late.episodes[0].error
    assert late.episodes[0].reward is None
    assert [r.reward for r in others] == [1.0, 1.0]
    assert engine.aborted == [engine.requests[0].rid]


def test_an_item_may_have_a_limit_of_its_own() -> None:
    with running(LocalEngine(Gate())) as (controller, _):
        task = controller.submit({"q": "1"}, Ask(), timeout_s=0.1)
        assert controller.wait(ids=[task], timeout=5)[0].episodes[0].status is EpisodeStatus.TIMEOUT


def test_cancelled_items_free_their_slots_and_are_not_announced() -> None:
    gate, seen = Gate(), list[Rollout]()
    with running(LocalEngine(gate), max_concurrency=2) as (controller, engine):
        ids = [controller.submit({"q": "x"}, Ask(), callback=seen.append) for _ in range(6)]
        until(lambda: engine.in_flight == 2, "two requests")
        controller.cancel(ids[:5])
        until(lambda: len(engine.requests) == 3, "the third request")
        assert gate.opened is not None
        controller._loop.loop.call_soon_threadsafe(gate.opened.set)  # type: ignore[union-attr]
        until(lambda: len(seen) == 1, "the callback")
        assert controller.snapshot().submitted == 1
    assert [r.task_id for r in seen] == ids[5:]
    assert len(engine.aborted) == 2


def test_cancelling_thousands_one_by_one_is_quick() -> None:
    with running(LocalEngine(Gate()), max_concurrency=2) as (controller, engine):
        ids = [controller.submit({"q": "x"}, Ask()) for _ in range(10_000)]
        until(lambda: engine.in_flight == 2, "two requests")
        started = time.thread_time()
        for task_id in ids:
            controller.cancel([task_id])
        assert time.thread_time() - started < 2
        until(lambda: engine.in_flight == 0, "the end of the cancelled")
        assert (controller.snapshot().queued, controller.snapshot().submitted) == (0, 0)


def test_waiting_for_a_cancelled_item_does_not_hang() -> None:
    with running(LocalEngine(Gate())) as (controller, _):
        task = controller.submit({"q": "x"}, Ask())
        threading.Timer(0.1, controller.cancel, [[task]]).start()
        with pytest.raises(ValueError, match="was cancelled"):
            controller.wait(ids=[task], timeout=10)


def test_a_workflow_that_ignores_its_cancellation_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_areal_eval.controller.pool.STUBBORN_S", 0.1)

    class Stubborn:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
            for _ in range(100):
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    continue
            return 1.0

    with running(max_concurrency=1, episode_timeout_s=0.1) as (controller, _):
        ids = [controller.submit({"q": "x"}, Stubborn()), controller.submit({"q": "y"}, Ask(), timeout_s=30)]
        first, second = controller.wait(ids=ids, timeout=10)
    assert first.episodes[0].status is EpisodeStatus.TIMEOUT
    assert "ignored its cancellation" in first.episodes[0].error
    assert second.reward == 1.0


# Listeners that fail


def test_a_journal_that_cannot_be_written_stops_the_run() -> None:
    def full(episode: Episode) -> None:
        raise JournalError("episodes.jsonl: no space left on device")

    with running(on_episode=full, max_concurrency=2) as (controller, engine):
        ids = [controller.submit({"q": str(i)}, Ask()) for i in range(50)]
        rollouts = controller.wait(ids=ids, timeout=10)
        assert isinstance(controller.failure, JournalError)
    statuses = [r.episodes[0].status for r in rollouts]
    assert statuses.count(EpisodeStatus.CANCELLED) >= 46
    assert "no space left" in rollouts[-1].episodes[0].error
    assert len(engine.requests) < 5


def test_a_callback_that_raises_stops_the_run_and_is_named() -> None:
    def broken(rollout: Rollout) -> None:
        raise KeyError("score")

    with running() as (controller, _):
        controller.submit({"q": "1"}, Ask(), item_id="row-1", callback=broken)
        until(lambda: controller.failure is not None, "the failure")
        assert "the callback of item 'row-1' raised KeyError: 'score'" in str(controller.failure)
        task = controller.submit({"q": "2"}, Ask())
        assert controller.wait(ids=[task], timeout=5)[0].episodes[0].status is EpisodeStatus.CANCELLED


# The end


def test_destroy_may_come_at_any_moment_and_twice() -> None:
    controller = RolloutController(LocalEngine())
    controller.destroy()
    controller.destroy()
    with pytest.raises(RuntimeError, match="initialized before"):
        controller.initialize()


def test_destroy_in_the_middle_of_a_run_ends_it_soon() -> None:
    controller = RolloutController(LocalEngine(Gate()), settings=ControllerSettings(max_concurrency=8))
    controller.initialize()
    for _ in range(100):
        controller.submit({"q": "x"}, Ask())
    started = time.monotonic()
    controller.destroy()
    assert time.monotonic() - started < 2
    with pytest.raises(RuntimeError, match="was destroyed"):
        controller.submit({"q": "x"}, Ask())
    assert not [t for t in threading.enumerate() if t.name == "areal-eval"]


def test_destroy_wakes_whoever_waits() -> None:
    with running(LocalEngine(Gate())) as (controller, _):
        controller.submit({"q": "x"}, Ask())
        threading.Timer(0.1, controller.destroy).start()
        with pytest.raises(RuntimeError, match="was destroyed"):
            controller.wait(timeout=10)


def test_destroy_during_initialize_ends_it() -> None:
    controller = RolloutController(LocalEngine(), tokenizer=lambda: time.sleep(1.0))
    threading.Timer(0.1, controller.destroy).start()
    with pytest.raises(RuntimeError, match="was destroyed while it started"):
        controller.initialize()
    assert not [t for t in threading.enumerate() if t.name == "areal-eval"]


def test_a_workflow_that_blocks_the_loop_does_not_block_destroy(monkeypatch: pytest.MonkeyPatch) -> None:
    """C84: the end is bounded whatever runs."""
    monkeypatch.setattr("pytest_areal_eval.controller.controller.CLOSE_LIMIT_S", 0.3)
    release = threading.Event()

    class Blocks:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
            release.wait(10)
            return 1.0

    events: list[Any] = []
    controller = RolloutController(LocalEngine(), on_event=events.append)
    controller.initialize()
    controller.submit({"q": "x"}, Blocks())
    until(lambda: controller.snapshot().loop_lag_s > 0.2, "the lag")
    started = time.monotonic()
    controller.destroy()
    assert time.monotonic() - started < 5
    assert "blocks the event loop" in events[-1].text
    release.set()
    until(lambda: not [t for t in threading.enumerate() if t.name == "areal-eval"], "the end of the loop's thread")


def test_waiting_in_a_callback_is_refused_not_deadlocked() -> None:
    problems: list[BaseException] = []
    with running() as (controller, _):

        def callback(rollout: Rollout) -> None:
            try:
                controller.destroy()
            except RuntimeError as error:
                problems.append(error)

        controller.submit({"q": "1"}, Ask(), callback=callback)
        until(lambda: bool(problems), "the refusal")
    assert "must not be called from a callback" in str(problems[0])


def test_a_tokenizer_that_cannot_be_loaded_fails_initialize() -> None:
    def broken() -> Any:
        raise OSError("no tokenizer.json")

    with pytest.raises(OSError, match="no tokenizer"):
        RolloutController(LocalEngine(), tokenizer=broken).initialize()


# Numbers


def test_stats_are_means_with_counts_by_areals_keys() -> None:
    async def answer(request: ModelRequest) -> str:
        return "42" if request.messages and request.messages[0]["content"] == "yes" else "41"

    with running(LocalEngine(answer)) as (controller, _):
        controller.rollout_batch([{"q": "yes"}, {"q": "no"}, {"q": "no"}, {"q": "no"}], Ask())
        stats = controller.export_stats()
        assert stats["eval-rollout/reward"] == 0.25
        assert stats["eval-rollout/reward__count"] == 4
        assert (stats["eval-rollout/accepted"], stats["eval-rollout/rejected"]) == (4.0, 0.0)
        assert controller.export_stats() == {}


def test_the_snapshot_names_the_oldest_item() -> None:
    with running(LocalEngine(Gate()), max_concurrency=2) as (controller, engine):
        for i in range(5):
            controller.submit({"q": "x"}, Ask(), item_id=f"row-{i}")
        until(lambda: engine.in_flight == 2, "two requests")
        snapshot = controller.snapshot()
    assert (snapshot.submitted, snapshot.running, snapshot.queued, snapshot.done) == (5, 2, 3, 0)
    assert snapshot.oldest_item == "row-0"
    assert snapshot.in_flight == {"local": 2}
    assert snapshot.oldest_age_s > 0


def test_agenerate_answers_outside_any_episode() -> None:
    with running() as (controller, _):
        response = asyncio.run(controller.agenerate(ModelRequest(messages=[{"role": "user", "content": "hi"}])))
    assert response.text == "42"
    assert response.replica == "local"


def test_32768_rollouts_finish_with_flat_memory_and_a_loop_that_keeps_up() -> None:
    """C90: more rollouts than anyone runs at once neither hang nor pile up."""
    total, sweeps = 32_768, list[float]()
    done = threading.Semaphore(0)
    with running(max_concurrency=512) as (controller, engine):
        engine.requests = _Nothing()
        loop = controller._loop.loop  # type: ignore[union-attr]

        def beat(before: float) -> None:  # once a sweep; in the thread's own time, whatever else runs here
            now = time.thread_time()
            sweeps.append(now - before)
            loop.call_soon(beat, now)

        loop.call_soon_threadsafe(beat, 1e9)
        ask = Ask()
        gc.disable()  # a full collection takes as long as the whole process's heap makes it, 40 ms and more here
        for i in range(total // 2):
            controller.submit({"q": str(i)}, ask, callback=lambda rollout: done.release())
        halfway = _after(done, total // 2)
        for i in range(total // 2):
            controller.submit({"q": str(i)}, ask, callback=lambda rollout: done.release())
        end = _after(done, total // 2)
        gc.enable()
    assert end - halfway < 1000, "objects stay behind finished items"
    assert max(sweeps) < 0.1


class _Nothing(list[ModelRequest]):
    def append(self, request: ModelRequest) -> None:
        """Remember nothing: the test measures memory."""


def _after(done: threading.Semaphore, count: int) -> int:
    for _ in range(count):
        assert done.acquire(timeout=60)
    gc.collect()
    return len(gc.get_objects())
