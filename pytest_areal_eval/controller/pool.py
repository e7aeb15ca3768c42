"""Keeps exactly ``limit`` episodes in flight while there is work, first come first served.

An episode that waits for its grader is not in flight; there are at most ``limit`` of those beside.

Invariant: every episode of a submission that is not cancelled ends exactly once, in ``_keep``.  The queue and the
results are shared with other threads, under one lock; all else lives in the loop's thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from pytest_areal_eval.api import Episode, EpisodeStatus, Rollout
from pytest_areal_eval.controller.clock import Clock
from pytest_areal_eval.controller.episodes import Submission, Unit, ended_from_outside
from pytest_areal_eval.controller.place import Places
from pytest_areal_eval.controller.results import Results
from pytest_areal_eval.controller.settings import Snapshot

TICK_S = 0.5
BURST = 8
"""Episodes started in one turn of the loop: the first requests leave while the last ones are built, which costs a
millisecond each."""
STUBBORN_S = 10.0
"""A workflow that ignores its cancellation for this long loses its place."""


class EpisodePool:
    """Runs episodes in a loop that belongs to another thread.

    Args:
        loop: where they run.
        run: one episode; never raises, except CancelledError for a cancelled item.
        on_episode: called in the loop's thread with each finished episode, before its rollout is announced.
        on_error: receives what ``on_episode`` or a callback raised.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Callable[[Unit], Coroutine[Any, Any, Episode]],
        on_episode: Callable[[Episode], None],
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._loop = loop
        self._run = run
        self._on_episode = on_episode
        self._on_error = on_error
        self._lock = threading.Lock()
        self._queue: deque[tuple[Submission, int]] = deque()
        self._running: dict[asyncio.Task[Episode], Unit] = {}
        self._results = Results()
        self._places = Places(self._fill)
        self._starts_left = BURST
        self._paused = False
        self._wakes = False
        self._verdict: tuple[EpisodeStatus, str] | None = None
        self._tokens = [0, 0]
        self._beat = time.monotonic()
        self._ticker: asyncio.TimerHandle | None = None

    # From any thread.

    def submit(self, submission: Submission) -> None:
        """Queue an item's episodes."""
        self._results.expect(submission)
        with self._lock:
            self._queue.extend((submission, index) for index, found in enumerate(submission.episodes) if found is None)
            wake, self._wakes = not self._wakes, True
        if wake:
            self._loop.call_soon_threadsafe(self._woken)

    def wait(self, count: int | None, timeout_s: float | None, ids: Sequence[int] | None) -> list[Rollout]:
        """See :meth:`RolloutController.wait`."""
        return self._results.wait(count, timeout_s, ids, self._oldest_text)

    def cancel(self, ids: Collection[int] | None) -> None:
        """Drop items: queued episodes never run, running ones are cancelled."""
        self._results.forget(ids)
        self._loop.call_soon_threadsafe(self._cancel_running)

    def snapshot(self) -> Snapshot:
        """The pool's part of the run's state."""
        oldest, age_s = self._oldest()
        with self._lock:
            queued = sum(not submission.cancelled for submission, _ in self._queue)
        return Snapshot(
            submitted=self._results.submitted,
            done=self._results.finished,
            queued=queued,
            running=self._places.taken,
            input_tokens=self._tokens[0],
            output_tokens=self._tokens[1],
            oldest_item=oldest,
            oldest_age_s=age_s,
            loop_lag_s=max(0.0, time.monotonic() - self._beat - TICK_S) if self._ticker else 0.0,
        )

    # In the loop's thread.

    def set_limit(self, limit: int) -> None:
        """Change how many episodes may be in flight; those beyond a lower limit finish."""
        self._places.limit = limit
        self._places.admit()

    def pause(self, paused: bool) -> None:
        """Start no further episode, or go on."""
        self._paused = paused
        self._fill()

    def end_all(self, status: EpisodeStatus, why: str) -> None:
        """End everything queued, running and still to come with ``status``."""
        self._verdict = (status, why)
        for job, unit in self._running.items():
            unit.verdict = self._verdict
            job.cancel()
        self._fill()

    async def close(self, limit_s: float) -> None:
        """Cancel what runs and wait for it, at most ``limit_s``; whoever waits is told."""
        self._results.close()
        self.cancel(None)
        self._cancel_running()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._running:
            await asyncio.wait(tuple(self._running), timeout=limit_s)

    def tick(self) -> None:
        """Note that the loop is alive, and take the places of workflows that ignore their cancellation."""
        self._beat = time.monotonic()
        for job, unit in tuple(self._running.items()):
            if unit.clock.overdue_s() > STUBBORN_S:
                why = f"no result within {unit.clock.limit_s:g} s, and the workflow ignored its cancellation"
                unit.verdict = (EpisodeStatus.TIMEOUT, why)
                self._abandon(job)
        self._ticker = self._loop.call_later(TICK_S, self.tick)

    def _woken(self) -> None:
        self._wakes = False
        self._fill()

    def _fill(self) -> None:
        if self._verdict is not None:
            self._end_queued()
        while self._has_room() and not self._paused and self._starts_left > 0:
            with self._lock:
                if not self._queue:
                    return
                submission, index = self._queue.popleft()
            if not submission.cancelled:
                self._start(submission, index)

    def _has_room(self) -> bool:
        return self._places.free > 0 and len(self._running) < 2 * self._places.limit

    def _start(self, submission: Submission, index: int) -> None:
        if self._starts_left == BURST:
            self._loop.call_soon(self._next_turn)
        self._starts_left -= 1
        unit = Unit(submission, index, Clock(submission.timeout_s), time.monotonic(), place=self._places.take())
        job = self._loop.create_task(self._run(unit))
        self._running[job] = unit
        job.add_done_callback(self._finished)

    def _next_turn(self) -> None:
        self._starts_left = BURST
        self._fill()

    def _end_queued(self) -> None:
        with self._lock:
            queued, self._queue = self._queue, deque()
        for submission, index in queued:
            unit = Unit(submission, index, Clock(None), time.monotonic(), self._verdict)
            self._keep(unit, ended_from_outside(unit))

    def _finished(self, job: asyncio.Task[Episode]) -> None:
        unit = self._running.pop(job, None)
        if unit is None:
            return
        if not job.cancelled():
            self._keep(unit, job.result())
        elif not unit.submission.cancelled:  # cancelled before its first step
            self._keep(unit, ended_from_outside(unit))
        self._leave(unit)

    def _leave(self, unit: Unit) -> None:
        if unit.place is not None:
            unit.place.give_up()
        self._fill()

    def _abandon(self, job: asyncio.Task[Episode]) -> None:
        unit = self._running.pop(job)
        self._keep(unit, ended_from_outside(unit))
        self._leave(unit)

    def _keep(self, unit: Unit, episode: Episode) -> None:
        submission = unit.submission
        if submission.cancelled:
            return
        self._tokens[0] += episode.input_tokens
        self._tokens[1] += episode.output_tokens
        submission.episodes[unit.index] = episode
        submission.missing -= 1
        try:
            doing = "on_episode"
            self._on_episode(episode)
            if submission.missing == 0:
                doing = "the callback"
                self._announce(submission)
        except Exception as error:
            self._on_error(f"{doing} of item {submission.item_id!r}", error)
            if doing == "on_episode" and submission.missing == 0:
                self._announce(submission)

    def _announce(self, submission: Submission) -> None:
        rollout = submission.rollout()
        if self._results.add(submission, rollout) and submission.callback is not None:
            submission.callback(rollout)

    def _cancel_running(self) -> None:
        for job, unit in self._running.items():
            if unit.submission.cancelled:
                job.cancel()

    def _oldest(self) -> tuple[str, float]:
        for unit in tuple(self._running.values())[:1]:
            return unit.submission.item_id, time.monotonic() - unit.started
        return "", 0.0

    def _oldest_text(self) -> str:
        item, age_s = self._oldest()
        return f"; the oldest, {item!r}, has run for {age_s:.1f} s" if item else "; none is running"
