"""The controlling process's part: whatever becomes of the servers, its workers get an answer and nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import until

from pytest_areal_eval.session.worker import ANSWER, NEED, read, write
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_owners_is_told_to_the_workers_that_wait() -> None:
    """A note that it cannot read, as a bug of ours would be: no worker waits an hour for it."""
    made = owner()
    write(made.folder / NEED, {})
    until(lambda: read(made.folder / ANSWER) is not None, "the answer", 5)
    assert read(made.folder / ANSWER) == {"error": "KeyError: 'rows'", "hint": ""}
    made.close()
    assert "KeyError" in str(made.conclusion.evaluations.engine_error)
