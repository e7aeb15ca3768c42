"""Where reports are slower than the engine, the engine waits for them, and goes on."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_areal_eval.options import Settings
from pytest_areal_eval.session import MOST_UNREPORTED, EvaluationSession


class Controller:
    """Knows whether it is paused."""

    paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


@pytest.fixture
def session(pytestconfig: pytest.Config) -> EvaluationSession:
    return EvaluationSession(pytestconfig, Settings({}, {}))


def finish(session: EvaluationSession, controller: Any, count: int) -> None:
    """Finish so many items that the session has forgotten, so that only their number matters."""
    item: Any = object()
    for _ in range(count):
        session._deliver(item, None, controller)  # type: ignore[arg-type]


def report(session: EvaluationSession, count: int) -> None:
    for _ in range(count):
        session._pump(lambda: None)


def test_the_engine_waits_while_reports_lag_behind(session: EvaluationSession) -> None:
    controller = Controller()
    with session.keeping_up():
        finish(session, controller, MOST_UNREPORTED)
        assert not controller.paused
        finish(session, controller, 1)
        assert controller.paused


def test_the_engine_goes_on_once_half_of_them_are_reported(session: EvaluationSession) -> None:
    controller = Controller()
    with session.keeping_up():
        finish(session, controller, MOST_UNREPORTED + 1)
        report(session, MOST_UNREPORTED // 2)
        assert controller.paused
        report(session, 2)
        assert not controller.paused


def test_the_engine_goes_on_when_the_block_of_reports_ends(session: EvaluationSession) -> None:
    controller = Controller()
    with session.keeping_up():
        finish(session, controller, MOST_UNREPORTED + 1)
    assert not controller.paused


def test_the_engine_never_waits_for_tests_that_report_nothing(session: EvaluationSession) -> None:
    controller = Controller()
    finish(session, controller, 10 * MOST_UNREPORTED)
    assert not controller.paused
