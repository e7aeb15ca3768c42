"""Where finished rollouts wait for their report.

Invariant: a rollout is kept until its test was reported; one that nobody waits for any more is dropped.  A controller's
thread delivers; everything else is called from pytest's main thread.
"""

from __future__ import annotations

import gc
import queue
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pytest_areal_eval.api import Rollout
from pytest_areal_eval.collection.groups import Group, group_of

if TYPE_CHECKING:
    from pytest_areal_eval.controller import RolloutController

TICK_S = 0.2
MOST_UNREPORTED = 256
"""Finished items that may wait for their report: 0.2 s of reporting, so that the end is near when the last one is done,
and no more of their completions in memory."""

THRESHOLDS = (10_000, 10, 10)
"""The garbage collector's while rollouts run.  Going through lists of token ids is slow, and most are soon gone: with
Python's own (700, 10, 10) collecting takes a twelfth of the process's time, with these a seventieth."""


@dataclass(slots=True)
class Ticket:
    """A submitted item: its controller, its task there, and its rollout once that is done."""

    controller: RolloutController
    task_id: int
    rollout: Rollout | None = None


class Inbox:
    """The tickets of the submitted items, and what came back for them."""

    def __init__(self) -> None:
        self._tickets: dict[pytest.Item, Ticket] = {}
        self._done: queue.SimpleQueue[tuple[pytest.Item, Rollout]] = queue.SimpleQueue()
        self._keeping_up = False
        self._paused: RolloutController | None = None

    def __contains__(self, item: pytest.Item) -> bool:
        return item in self._tickets

    def of(self, item: pytest.Item) -> Ticket | None:
        """An item's ticket."""
        return self._tickets.get(item)

    def expect(self, item: pytest.Item, controller: RolloutController, task_id: int) -> None:
        """An item was submitted."""
        self._tickets[item] = Ticket(controller, task_id)

    def keep(self, item: pytest.Item, controller: RolloutController, rollout: Rollout) -> None:
        """An item's rollout is there already."""
        self._tickets[item] = Ticket(controller, rollout.task_id, rollout)
        group_of(item).ready.append(item)

    def forget(self, item: pytest.Item) -> None:
        """The item's rollout was reported."""
        self._tickets.pop(item, None)

    def cancel(self, items: Sequence[pytest.Item]) -> None:
        """Give up what was submitted for these items and not picked up."""
        for item in items:
            ticket = self._tickets.pop(item, None)
            if ticket is not None and ticket.rollout is None:
                ticket.controller.cancel([ticket.task_id])

    def deliver(self, item: pytest.Item, rollout: Rollout, controller: RolloutController) -> None:
        """Hand a finished item over to the main thread; called in the controller's."""
        self._done.put((item, rollout))
        if self._keeping_up and self._paused is None and self._done.qsize() > MOST_UNREPORTED:
            controller.pause()
            self._paused = controller  # only now, so that whoever sees it resumes what is paused already

    def next_completed(self, group: Group, among: Set[pytest.Item], tick: Callable[[], None]) -> pytest.Item:
        """Wait for any of a group's items to be done and return it; ``tick`` is called a few times a second."""
        while True:
            while group.ready:
                item = group.ready.popleft()
                if item in among:
                    return item
            self.pump(tick)

    def rollout(self, item: pytest.Item, tick: Callable[[], None]) -> Rollout:
        """Wait for a submitted item's rollout."""
        ticket = self._tickets[item]
        while ticket.rollout is None:
            self.pump(tick)
        return ticket.rollout

    def pump(self, tick: Callable[[], None]) -> None:
        """Take one finished item, or call ``tick`` where none comes for a moment."""
        if self._done.qsize() <= MOST_UNREPORTED // 2:
            self._resume()
        try:
            item, rollout = self._done.get(timeout=TICK_S)
        except queue.Empty:
            tick()
            return
        ticket = self._tickets.get(item)
        if ticket is not None and ticket.task_id == rollout.task_id:
            ticket.rollout = rollout
            group_of(item).ready.append(item)

    @contextmanager
    def keeping_up(self) -> Iterator[None]:
        """Start no further episodes inside while reports lag behind; reporting then takes the time, not the engine.

        What is there (the tests, torch's modules, the reports) stays to the end, so the garbage collector need not look
        at it: 0.1 s for each full collection at 10,000 tests, of which pytest makes five when it ends.  What an earlier
        session of this process left is given back first.
        """
        self._keeping_up = True
        gc.unfreeze()
        gc.freeze()
        before = gc.get_threshold()
        gc.set_threshold(*THRESHOLDS)
        try:
            yield
        finally:
            gc.set_threshold(*before)
            gc.freeze()
            self._keeping_up = False
            self._resume()

    def _resume(self) -> None:
        if self._paused is not None:
            self._paused.resume()
            self._paused = None
