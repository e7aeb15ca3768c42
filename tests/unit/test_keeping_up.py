"""Where reports are slower than the engine, the engine waits for them, and goes on."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from pytest_areal_eval.session.inbox import MOST_UNREPORTED, THRESHOLDS, Inbox


class Controller:
    """Knows whether it is paused."""

    paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def finish(inbox: Inbox, controller: Any, count: int) -> None:
    """Finish so many items that nobody waits for, so that only their number matters."""
    item: Any = object()
    for _ in range(count):
        inbox.deliver(item, None, controller)  # type: ignore[arg-type]


def report(inbox: Inbox, count: int) -> None:
    for _ in range(count):
        inbox.pump(lambda: None)


def test_the_engine_waits_while_reports_lag_behind(inbox: Inbox) -> None:
    controller = Controller()
    with inbox.keeping_up():
        finish(inbox, controller, MOST_UNREPORTED)
        assert not controller.paused
        finish(inbox, controller, 1)
        assert controller.paused


def test_the_engine_goes_on_once_half_of_them_are_reported(inbox: Inbox) -> None:
    controller = Controller()
    with inbox.keeping_up():
        finish(inbox, controller, MOST_UNREPORTED + 1)
        report(inbox, MOST_UNREPORTED // 2)
        assert controller.paused
        report(inbox, 2)
        assert not controller.paused


def test_the_engine_goes_on_when_the_block_of_reports_ends(inbox: Inbox) -> None:
    controller = Controller()
    with inbox.keeping_up():
        finish(inbox, controller, MOST_UNREPORTED + 1)
    assert not controller.paused


def test_the_engine_never_waits_for_tests_that_report_nothing(inbox: Inbox) -> None:
    controller = Controller()
    finish(inbox, controller, 10 * MOST_UNREPORTED)
    assert not controller.paused


def test_the_garbage_collector_gets_its_thresholds_back(inbox: Inbox) -> None:
    before = gc.get_threshold()
    with inbox.keeping_up():
        assert gc.get_threshold() == THRESHOLDS
    assert gc.get_threshold() == before
