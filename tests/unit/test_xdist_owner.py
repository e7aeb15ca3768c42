"""The controlling process's part: whatever becomes of the servers, its workers get an answer and nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import until

from pytest_areal_eval.engines.base import Endpoint
from pytest_areal_eval.errors import EngineLost
from pytest_areal_eval.session.worker import ANSWER, FAILED, FOUND, KEY, NEED, Worker, read, write
from pytest_areal_eval.session.xdist import Owner

GIVEN = {"workers": 2, "mode": "load", "limit_s": 10.0}


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


class Answering:
    """Its one server moves, and is given up at last."""

    def __init__(self) -> None:
        self.endpoints = [Endpoint("r/0", "http://127.0.0.1:1", "t")]
        self.failure: EngineLost | None = None

    def destroy(self) -> None:
        """Nothing was started."""


def test_workers_hear_where_the_servers_are_and_that_they_will_not_come_back() -> None:
    made: Any = owner()
    made._answered = {"run": None, "endpoints": [asdict(Endpoint("r/0", "http://127.0.0.1:1", "t"))]}
    write(made.folder / ANSWER, made._answered)
    worker = Worker(SimpleNamespace(workerinput={KEY: GIVEN | {"folder": str(made.folder)}, "workerid": "gw0"}))  # type: ignore[arg-type]
    ask = worker.whereabouts()
    made._controller = Answering()
    assert [endpoint.base_url for endpoint in ask()] == ["http://127.0.0.1:1"]
    made._controller.endpoints = [Endpoint("r/0", "http://127.0.0.1:2", "t")]
    until(lambda: ask() == made._controller.endpoints, "the new address", 5)
    made._controller.failure = EngineLost("all is lost", "Look at the log.")

    def told() -> bool:
        try:
            return not ask()
        except EngineLost as error:
            return (str(error.args[0]), error.hint) == ("all is lost", "Look at the log.")

    until(told, "the failure", 5)
    made.close()
    made._controller.endpoints = []
    assert ask() == [Endpoint("r/0", "http://127.0.0.1:2", "t")]  # the owner has ended: as it was last


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_owners_is_told_to_the_workers_that_wait() -> None:
    """A note that it cannot read, as a bug of ours would be: no worker waits an hour for it."""
    made = owner()
    write(made.folder / NEED, {})
    until(lambda: read(made.folder / ANSWER) is not None, "the answer", 5)
    assert read(made.folder / ANSWER) == {"error": "KeyError: 'rows'", "hint": ""}
    made.close()
    assert "KeyError" in str(made.conclusion.evaluations.engine_error)
