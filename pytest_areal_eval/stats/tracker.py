"""AReaL's ``stats_tracker``, for workflows that record numbers of their own.

Invariant: merging the states of several trackers gives what one tracker would have recorded, to the last count, sum,
minimum and maximum.  Scopes belong to the running task, so concurrent episodes do not see each other's; what an episode
records is its own until it ends, so that it is kept, counted or dropped with it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from pytest_areal_eval.stats.cells import (
    Array,
    Cell,
    ReduceType,
    State,
    add_cell,
    cell_of,
    cells_state,
    check_type,
    export_cells,
)

__all__ = ["ReduceType", "StatsTracker", "Trackers", "absorb", "adopt", "current", "get", "use"]

_own: ContextVar[dict[str, Cell] | None] = ContextVar("areal_eval_own_cells", default=None)
"""What the running episode has recorded; None outside of one."""


class StatsTracker:
    """Records under one scope.  The methods are AReaL's; arrays may be torch's, numpy's or nested lists.

    Args:
        scope: prefix of every key, such as ``eval-rollout``.
        types: of the keys of all trackers of a run; None for a tracker of nobody's, which keeps what it is told.
    """

    def __init__(self, scope: str = "", types: dict[str, ReduceType] | None = None) -> None:
        prefix = (scope.strip("/"),) if scope.strip("/") else ()
        # A context variable lives as long as the process; there is one tracker per scope, a handful in all.
        self._scopes: ContextVar[tuple[str, ...]] = ContextVar("areal_eval_scopes", default=prefix)
        self._masks: ContextVar[Mapping[str, Array] | None] = ContextVar("areal_eval_masks", default=None)
        self._cells: dict[str, Cell] = {}
        self._types = {} if types is None else types
        self._is_runs = types is not None
        self._lock = threading.Lock()

    def scalar(self, **values: Any) -> None:
        """Record one number for each key; exported as the mean, with ``key__count``."""
        for key, value in values.items():
            self._record(self._full(key), cell_of([float(value)], ReduceType.SCALAR))

    def denominator(self, **masks: Any) -> None:
        """Record a boolean array for each key: which elements of the arrays that name it count.

        Raises:
            ValueError: a mask holds something else than booleans.
        """
        for key, value in masks.items():
            mask = Array.read(key, value)
            if not all(isinstance(x, bool) for x in mask.values):
                raise ValueError(f"denominator {key!r} must hold booleans, got {value!r:.100}")
            if mask.values:
                full = self._full(key)
                self._masks.set({**(self._masks.get() or {}), full: mask})
                self._record(full, cell_of([float(x) for x in mask.values if x], ReduceType.SUM))

    def stat(self, denominator: str, reduce_type: ReduceType | None = None, **arrays: Any) -> None:
        """Record an array for each key, masked by the latest ``denominator`` of that name in this task.

        Args:
            denominator: the name of the mask.
            reduce_type: what is exported; AVG_MIN_MAX unless told otherwise.
            arrays: numbers, in the mask's shape; an empty array records nothing.

        Raises:
            ValueError: the denominator does not exist, a shape differs from its shape, or ``reduce_type`` is SCALAR.
        """
        if reduce_type is ReduceType.SCALAR:
            raise ValueError("SCALAR is for single numbers: call scalar(...)")
        mask = (self._masks.get() or {}).get(self._full(denominator))
        for key, value in arrays.items():
            array = Array.read(key, value)
            if not array.values:
                continue
            if mask is None:
                raise ValueError(f"denominator {self._full(denominator)!r} of {key!r} does not exist; record it first")
            if array.shape != mask.shape:
                raise ValueError(f"{key!r} has shape {array.shape}, its denominator {denominator!r} {mask.shape}")
            kept = [float(x) for x, on in zip(array.values, mask.values, strict=True) if on]
            self._record(self._full(key), cell_of(kept, reduce_type or ReduceType.AVG_MIN_MAX))

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[StatsTracker]:
        """Put ``name/`` before the keys that the running task records inside."""
        token = self._scopes.set((*self._scopes.get(), name.strip("/")))
        try:
            yield self
        finally:
            self._scopes.reset(token)

    @contextlib.contextmanager
    def disable_scope(self) -> Iterator[StatsTracker]:
        """Record without any prefix, inside."""
        token = self._scopes.set(())
        try:
            yield self
        finally:
            self._scopes.reset(token)

    @contextlib.contextmanager
    def record_timing(self, key: str) -> Iterator[None]:
        """Record the seconds spent inside as the scalar ``timeperf/key``, whatever the scope."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._record(f"timeperf/{key}", cell_of([time.perf_counter() - started], ReduceType.SCALAR))

    def scope_func_wrapper(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator: what the function, a coroutine function too, records stands under ``name/``."""
        return within(lambda: self.scope(name))

    def export(self, key: str | None = None, reduce_group: None = None, reset: bool = True) -> dict[str, float]:
        """What was recorded, under AReaL's keys; empties the tracker unless told otherwise.

        Args:
            key: this one alone; None: all.
            reduce_group: None, since nothing here is distributed by torch.
            reset: whether what is exported is forgotten.
        """
        return export_cells(self._take(reset, None if key is None else self._full(key)))

    def state(self, *, reset: bool = False) -> State:
        """All that was recorded, JSON-able, for :meth:`merge` elsewhere; infinities and NaN travel as strings."""
        return cells_state(self._take(reset))

    def merge(self, states: Iterable[State]) -> None:
        """Add what other trackers recorded; their keys are full keys and get no prefix."""
        for state in states:
            for key, raw in state.items():
                self._add(key, Cell.read(raw))

    def _full(self, key: str) -> str:
        return "/".join((*self._scopes.get(), key.strip("/")))

    def _record(self, key: str, new: Cell) -> None:
        own = _own.get() if self._is_runs else None
        self._add(key, new, self._cells if own is None else own)

    def _add(self, key: str, new: Cell, cells: dict[str, Cell] | None = None) -> None:
        check_type(key, new, self._types.setdefault(key, new.type))
        with self._lock:
            add_cell(self._cells if cells is None else cells, key, new)

    def _take(self, reset: bool, key: str | None = None) -> dict[str, Cell]:
        """A copy of the cells, emptied in the same breath so that nothing recorded meanwhile is lost."""
        with self._lock:
            cells = {name: replace(cell) for name, cell in self._cells.items() if key in (None, name)}
            for name in cells if reset else ():
                del self._cells[name]
            return cells


class Trackers:
    """The trackers of one run, by scope; its owner is the controller."""

    def __init__(self) -> None:
        self._trackers: dict[str, StatsTracker] = {}
        self._types: dict[str, ReduceType] = {}
        self._lock = threading.Lock()

    def get(self, scope: str = "") -> StatsTracker:
        """The tracker of a scope, made on first use."""
        scope = scope.strip("/")
        with self._lock:
            if scope not in self._trackers:
                self._trackers[scope] = StatsTracker(scope, self._types)
            return self._trackers[scope]

    def export_all(self, *, reset: bool = True) -> dict[str, float]:
        """Every tracker's export; a key that several of them recorded is merged."""
        return export_cells(self._take(reset))

    def state(self, *, reset: bool = False) -> State:
        """All of them as one state."""
        return cells_state(self._take(reset))

    def merge(self, states: Iterable[State]) -> None:
        """Add what other processes recorded."""
        self.get().merge(states)

    def add(self, cells: Mapping[str, Cell]) -> None:
        """Add what an episode came to; a key that is something else already gets the type behind it."""
        tracker = self.get()
        for key, cell in cells.items():
            same = self._types.get(key, cell.type) is cell.type
            tracker._add(key if same else f"{key} ({cell.type})", cell)

    def _take(self, reset: bool) -> dict[str, Cell]:
        with self._lock:
            trackers = list(self._trackers.values())
        cells: dict[str, Cell] = {}
        for tracker in trackers:
            for key, cell in tracker._take(reset).items():
                add_cell(cells, key, cell)
        return cells


_current: ContextVar[Trackers | None] = ContextVar("areal_eval_trackers", default=None)


@contextlib.contextmanager
def use(trackers: Trackers) -> Iterator[Trackers]:
    """Make ``trackers`` what :func:`get` reads, in this task and the tasks that it starts."""
    token = _current.set(trackers)
    try:
        yield trackers
    finally:
        _current.reset(token)


def within(scope: Callable[[], AbstractContextManager[Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that calls the function, or awaits the coroutine function, inside a context made for each call."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with scope():
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            with scope():
                return await function(*args, **kwargs)

        return acall if inspect.iscoroutinefunction(function) else call

    return decorate


def adopt(trackers: Trackers) -> Mapping[str, Cell]:
    """As :func:`use`, for the rest of this task: nothing is put back, so the task may also end unseen.

    Returns:
        What it and the tasks that it starts record from now on; ``trackers`` get it from whoever adopted them.
    """
    _current.set(trackers)
    own: dict[str, Cell] = {}
    _own.set(own)
    return own


def absorb(state: State) -> None:
    """Record what was recorded elsewhere on behalf of the running task."""
    tracker = get()
    for key, raw in state.items():
        tracker._record(key, Cell.read(raw))


def current() -> Trackers:
    """The running controller's trackers; outside of one, trackers that belong to this thread or task."""
    trackers = _current.get()
    if trackers is None:
        trackers = Trackers()
        _current.set(trackers)
    return trackers


def get(scope: str = "") -> StatsTracker:
    """AReaL's ``stats_tracker.get(scope)``."""
    return current().get(scope)
