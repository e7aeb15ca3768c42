"""The controlling process's part: whatever becomes of the servers, its workers get an answer and nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import until

from pytest_areal_eval.controller.settings import Snapshot
from pytest_areal_eval.session.worker import ANSWER, FAILED, FOUND, NEED, read, write
from pytest_areal_eval.session.xdist import Owner


class StartingController:
    """Its start lasts until it is destroyed."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.destroyed = threading.Event()

    def start(self) -> None:
        self.begun.set()
        assert self.destroyed.wait(10)
        raise RuntimeError("the controller was destroyed while it started")

    def destroy(self) -> None:
        self.destroyed.set()


def owner() -> Owner:
    """An owner whose session is nothing but its notes and its error."""
    evaluations: Any = SimpleNamespace(engine_error=None, notes=[])
    config: Any = SimpleNamespace()
    conclusion: Any = SimpleNamespace(evaluations=evaluations)
    return Owner(config, conclusion)


def test_servers_that_start_are_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """C7: Ctrl-C while a server loads; nobody waits for the start's own limit."""
    controller = StartingController()

    def answer(made: Any, need: Mapping[str, Any]) -> None:
        made._controller = controller
        controller.start()

    monkeypatch.setattr(Owner, "_answer", answer)
    made = owner()
    write(made.folder / NEED, {})
    assert controller.begun.wait(5)
    made.close()
    assert controller.destroyed.is_set()
    assert not made.folder.exists()
    assert made.conclusion.evaluations.engine_error is None


def test_an_interrupt_lets_no_worker_wait() -> None:
    """What they then say of it is not what ended the session."""
    made = owner()
    made.interrupt()
    for answer in (FOUND, ANSWER):
        assert read(made.folder / answer) == {"error": "the session was interrupted", "hint": ""}
    write(made.folder / FAILED, {"kind": "EngineStartError", "text": "the session was interrupted", "hint": ""})
    made.close()
    assert made.conclusion.evaluations.engine_error is None


class Coming:
    """One more of its three replicas is ready each time that it is asked, up to ``most``."""

    def __init__(self, most: int = 3) -> None:
        self.most = most
        self.ready = 0

    def snapshot(self) -> Snapshot:
        self.ready = min(self.ready + 1, self.most)
        return Snapshot(replicas_ready=self.ready, replicas_total=3)

    def destroy(self) -> None:
        """Nothing was started."""


def test_workers_wait_for_the_replicas_that_come_soon_after_the_first() -> None:
    made = owner()
    for controller, first_s, ready in ((Coming(), 60.0, 3), (Coming(most=2), 0.35, 2)):
        made._wait_for_others(controller, first_s)  # type: ignore[arg-type]
        assert controller.ready == ready
    made.close()


def test_replicas_that_came_too_late_for_the_workers_are_told_of() -> None:
    made: Any = owner()
    made._controller, made._given = Coming(), 1
    made._controller.ready = 2
    made.close()
    (note,) = made.conclusion.evaluations.notes
    assert note.startswith("2 of 3 replicas were ready too late for the workers")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_owners_is_told_to_the_workers_that_wait() -> None:
    """A note that it cannot read, as a bug of ours would be: no worker waits an hour for it."""
    made = owner()
    write(made.folder / NEED, {})
    until(lambda: read(made.folder / ANSWER) is not None, "the answer", 5)
    assert read(made.folder / ANSWER) == {"error": "KeyError: 'rows'", "hint": ""}
    made.close()
    assert "KeyError" in str(made.conclusion.evaluations.engine_error)
