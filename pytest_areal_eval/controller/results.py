"""Finished rollouts between the loop's thread, which adds them, and the threads that wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pytest_areal_eval.api import Rollout
from pytest_areal_eval.controller.episodes import Submission
from pytest_areal_eval.controller.loop import STEP_S


@dataclass(eq=False, slots=True)
class _Want:
    """What a waiting thread lacks: a number of rollouts, or those of certain ids."""

    count: int
    ids: tuple[int, ...] | None
    missing: set[int]

    def met(self, done: Collection[int]) -> bool:
        if self.ids is None:
            return len(done) >= self.count
        if not self.missing:  # another thread may have taken what was there
            self.missing = {task_id for task_id in self.ids if task_id not in done}
        return not self.missing


class Results:
    """Hands each rollout out once.  Rollouts of submissions with a callback are not kept."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[int, Submission] = {}
        self._done: dict[int, Rollout] = {}
        self._to_come = 0  # open ones without a callback
        self._wants: list[_Want] = []
        self._closed = False
        self.submitted = 0
        self.finished = 0

    def expect(self, submission: Submission) -> None:
        """A submission begins."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the controller was destroyed; make a new one")
            self._open[submission.task_id] = submission
            self._to_come += submission.callback is None
            self.submitted += 1

    def add(self, submission: Submission, rollout: Rollout) -> bool:
        """It finished; False if it was cancelled meanwhile."""
        with self._changed:
            if self._open.pop(submission.task_id, None) is None:
                return False
            self.finished += 1
            if submission.callback is None:
                self._to_come -= 1
                self._done[rollout.task_id] = rollout
                self._notify(rollout.task_id)
            return True

    def forget(self, ids: Collection[int] | None) -> None:
        """Cancel those that are not finished (None: all)."""
        with self._changed:
            for task_id in tuple(self._open) if ids is None else ids:
                submission = self._open.pop(task_id, None)
                if submission is not None:
                    submission.cancelled = True
                    self._to_come -= submission.callback is None
                    self.submitted -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Whoever waits, or will, gets a RuntimeError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(
        self,
        count: int | None,
        timeout_s: float | None,
        ids: Sequence[int] | None,
        oldest: Callable[[], str],
    ) -> list[Rollout]:
        """See :meth:`RolloutController.wait`; ``oldest`` describes the item that has run longest."""
        if count is not None and count <= 0:
            raise ValueError(f"count must be positive, got {count}")
        if ids is not None and len(set(ids)) < len(ids):
            raise ValueError(f"ids {list(ids)} name a task twice; each rollout is handed out once")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            want = self._want(count, ids)
            self._wants.append(want)
            try:
                while not want.met(self._done):
                    self._check_possible(want)
                    left_s = None if deadline is None else deadline - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        raise TimeoutError(f"waited {timeout_s:g} s for {self._got(want)}{oldest()}")
                    self._changed.wait(STEP_S if left_s is None else min(left_s, STEP_S))
            finally:
                self._wants.remove(want)
            chosen = sorted(list(self._done)[: want.count]) if want.ids is None else want.ids
            return [self._done.pop(task_id) for task_id in chosen]

    def _want(self, count: int | None, ids: Sequence[int] | None) -> _Want:
        if ids is None:
            return _Want(len(self._done) + self._to_come if count is None else count, None, set())
        return _Want(len(ids), tuple(ids), set())

    def _check_possible(self, want: _Want) -> None:
        if self._closed:
            raise RuntimeError("the controller was destroyed while this thread waited for results")
        if want.ids is None and len(self._done) + self._to_come < want.count:
            outstanding = len(self._done) + self._to_come
            raise ValueError(f"cannot wait for {want.count} rollouts: only {outstanding} are outstanding")
        for task_id in want.missing:
            if task_id not in self._open or self._open[task_id].callback is not None:
                raise ValueError(
                    f"task {task_id} will give no rollout: it was never submitted, was cancelled, "
                    "was handed out already, or has a callback"
                )

    def _notify(self, task_id: int) -> None:
        for want in self._wants:
            want.missing.discard(task_id)
        if any(want.met(self._done) for want in self._wants):
            self._changed.notify_all()

    def _got(self, want: _Want) -> str:
        got = len(self._done) if want.ids is None else want.count - len(want.missing)
        return f"{want.count} rollouts and got {got}"
