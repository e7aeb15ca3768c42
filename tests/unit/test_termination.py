"""Ctrl-C waits for a report, and nobody else's handler is lost."""

from __future__ import annotations

import importlib.abc
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest

from pytest_areal_eval.session.conclusion import load_what_the_end_needs
from pytest_areal_eval.session.termination import HELD_S, held


def interrupted(times: int, then: Callable[[], object]) -> None:
    with held():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        then()


def test_ctrl_c_acts_after_the_block() -> None:
    reached: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(1, lambda: reached.append(True))
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_acts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(2, lambda: pytest.fail("not reached"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_acts_where_the_block_fails_too() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(1, lambda: int("no number"))


def test_a_long_block_is_interrupted_all_the_same() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted(1, lambda: time.sleep(10))
    assert 0.9 * HELD_S < time.monotonic() - began < 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_block_in_another_gives_what_came_to_it() -> None:
    reached: list[bool] = []

    def outer() -> None:
        with held():
            interrupted(1, lambda: reached.append(True))
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert reached == [True, True]


def test_somebody_elses_handler_gets_the_signal() -> None:
    got: list[int] = []

    def theirs(number: int, frame: FrameType | None) -> None:
        got.append(number)

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        with held():
            signal.raise_signal(signal.SIGTERM)
            assert got == []
        assert got == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_waits_for_the_libraries_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an import, Python may drop it."""

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "tabulate":
                signal.raise_signal(signal.SIGINT)

    monkeypatch.delitem(sys.modules, "tabulate", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(KeyboardInterrupt):
        load_what_the_end_needs()
    assert "tabulate" in sys.modules


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_changes_no_handler() -> None:
    seen: list[object] = []

    def look() -> None:
        with held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(5)
    assert seen == [signal.getsignal(signal.SIGINT)]
