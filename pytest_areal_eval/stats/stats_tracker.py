"""AReaL's module of that name: its functions, on the trackers of the run that the caller belongs to.

``stats_tracker.get(workflow_context.stat_scope()).scalar(turns=3)`` records for the running episode; the functions
without ``get`` record without a scope.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pytest_areal_eval.stats.tracker import ReduceType, StatsTracker, current, get, within

__all__ = [
    "DistributedStatsTracker",
    "ReduceType",
    "denominator",
    "disable_scope",
    "export",
    "export_all",
    "get",
    "record_timing",
    "scalar",
    "scope",
    "scope_func_wrapper",
    "stat",
]

DistributedStatsTracker = StatsTracker


def scalar(**values: Any) -> None:
    """See :meth:`StatsTracker.scalar`."""
    get().scalar(**values)


def denominator(**masks: Any) -> None:
    """See :meth:`StatsTracker.denominator`."""
    get().denominator(**masks)


def stat(denominator: str, reduce_type: ReduceType | None = None, **arrays: Any) -> None:
    """See :meth:`StatsTracker.stat`."""
    get().stat(denominator, reduce_type, **arrays)


def scope(name: str) -> AbstractContextManager[StatsTracker]:
    """See :meth:`StatsTracker.scope`."""
    return get().scope(name)


def disable_scope() -> AbstractContextManager[StatsTracker]:
    """See :meth:`StatsTracker.disable_scope`."""
    return get().disable_scope()


def record_timing(key: str) -> AbstractContextManager[None]:
    """See :meth:`StatsTracker.record_timing`."""
    return get().record_timing(key)


def scope_func_wrapper(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """See :meth:`StatsTracker.scope_func_wrapper`; the tracker is that of the decorated function's caller."""
    return within(lambda: get().scope(name))


def export(key: str | None = None, reduce_group: None = None, reset: bool = True) -> dict[str, float]:
    """See :meth:`StatsTracker.export`."""
    return get().export(key, reduce_group, reset)


def export_all(reduce_group: None = None, reset: bool = True) -> dict[str, float]:
    """Every tracker of the run in one dictionary; a key that several of them recorded is merged."""
    return current().export_all(reset=reset)
