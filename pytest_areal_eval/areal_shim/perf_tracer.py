"""AReaL's tracing calls, which record nothing here, as they do there unless ``perf_tracer.enabled`` is set.

Times of episodes are in the journal; ``stats_tracker.record_timing`` measures what a workflow wants to know.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from enum import StrEnum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Category(StrEnum):
    """Kinds of spans."""

    COMPUTE = "compute"
    COMM = "comm"
    IO = "io"
    SYNC = "sync"
    SCHEDULER = "scheduler"
    INSTR = "instr"
    MISC = "misc"


def trace_session(phase: str) -> Callable[[F], F]:
    """A decorator that changes nothing."""
    return _unchanged


def session_context(count: int = 1) -> Callable[[F], F]:
    """A decorator that changes nothing."""
    return _unchanged


def trace_perf(name: str, category: Any = None) -> Callable[[F], F]:
    """A decorator that changes nothing."""
    return _unchanged


def trace_session_phase(phase: str, *, start_payload: Any = None, end_payload: Any = None) -> nullcontext[None]:
    """A context that does nothing."""
    return nullcontext()


def atrace_session_phase(phase: str, *, start_payload: Any = None, end_payload: Any = None) -> nullcontext[None]:
    """An async context that does nothing."""
    return nullcontext()


def trace_scope(name: str, category: Any = None, args: Any = None) -> nullcontext[None]:
    """A context that does nothing."""
    return nullcontext()


def atrace_scope(name: str, category: Any = None, args: Any = None) -> nullcontext[None]:
    """An async context that does nothing."""
    return nullcontext()


def instant(name: str, category: Any = None, args: Any = None) -> None:
    """Nothing."""


def _unchanged(function: F) -> F:
    return function
