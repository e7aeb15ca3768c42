"""A pool of grading processes that can be killed: a reward function that hangs, dies or leaks costs its own call alone.

Each of the pool's threads owns one process and gives it one call at a time, so a fault always belongs to one call, the
clock of a call's limit starts when its work does, and a process that was killed is replaced before the next call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import FunctionType, TracebackType
from typing import Any

from pytest_areal_eval.api import Score
from pytest_areal_eval.errors import ConfigError, GraderError
from pytest_areal_eval.rewards.importing import FunctionRef, dump, refer_to
from pytest_areal_eval.rewards.process import GradingProcess
from pytest_areal_eval.rewards.values import DEFAULT_RANGE
from pytest_areal_eval.rewards.worker import Call


def default_workers() -> int:
    """Half of the cores that this process may use, at least one and at most 16.

    A maths answer takes 2-4 ms: one process grades about 300 a second, more than most engines generate.
    """
    return min(max(len(os.sched_getaffinity(0)) // 2, 1), 16)


class RewardPool:
    """Runs reward functions in processes of their own, from any number of event loops and threads.

    Args:
        workers: number of processes; they start when they are first needed.
        timeout_s: limit of one call, from the start of its work.  Importing the function is not counted.
        memory_mb: what one process may allocate (``RLIMIT_DATA``); None for no limit.

    Raises:
        ConfigError: there would be no worker or no time.
    """

    def __init__(self, workers: int | None = None, timeout_s: float = 15.0, memory_mb: int | None = 4096) -> None:
        self.workers = default_workers() if workers is None else workers
        if self.workers < 1 or timeout_s <= 0:
            what = f"{self.workers} workers" if self.workers < 1 else f"a time limit of {timeout_s:g} s"
            raise ConfigError(f"a reward pool cannot have {what}", "Give at least one worker and more than 0 s.")
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="reward")
        self._own = threading.local()
        self._processes: set[GradingProcess] = set()
        self._lock = threading.Lock()
        self._refs: dict[str | FunctionType, FunctionRef] = {}
        self._closed = False
        atexit.register(self.close)

    async def score(
        self,
        fn: str | Callable[..., Any],
        /,
        *args: Any,
        where: str,
        timeout_s: float | None = None,
        reward_range: tuple[float, float] | None = DEFAULT_RANGE,
        **kwargs: Any,
    ) -> Score:
        """:meth:`grade` with the function's arguments in place."""
        return await self.grade(fn, args, kwargs, where=where, timeout_s=timeout_s, reward_range=reward_range)

    async def grade(
        self,
        fn: str | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        where: str,
        timeout_s: float | None = None,
        reward_range: tuple[float, float] | None = DEFAULT_RANGE,
    ) -> Score:
        """Call ``fn(*args, **kwargs)`` in a grading process and read its score.

        Args:
            fn: a dotted name or any callable; a coroutine function is awaited there.
            args: its positional arguments.
            kwargs: its keyword arguments, of any name.
            where: the item, as messages name it.
            timeout_s: limit of this call; the pool's if None.
            reward_range: lowest and highest reward; None allows every finite number.

        Raises:
            GraderTimeout: it did not return in time; its process and all that this started were killed.
            GraderError: it raised, its process died, or what it returned is no reward.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            ref, arguments = self._refer(fn), dump((args, dict(kwargs)))
        except TypeError as error:
            raise GraderError(
                f"{where}: {error}", "Give the function by its dotted name, and plain arguments."
            ) from error
        future = self._submit(ref, Call(0, arguments, where, reward_range), limit_s)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise self._closed_error(where) from None
            raise

    def warm(self) -> None:
        """Start the processes now, in the background, since the first call is sure to come."""
        for _ in range(self.workers):
            with contextlib.suppress(RuntimeError):  # shut down
                self._threads.submit(self._warm)

    def _warm(self) -> None:
        if getattr(self._own, "process", None) is None and not self._closed:
            self._replace(None, "start")

    def close(self) -> None:
        """Kill the processes and all that they started; calls that wait raise GraderError.  May be called again."""
        with self._lock:
            self._closed = True
            processes = list(self._processes)
        atexit.unregister(self.close)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.hang_up()
        self._threads.shutdown()
        for process in processes:
            process.close()

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _refer(self, fn: str | Callable[..., Any]) -> FunctionRef:
        """The function's reference, kept where it cannot change: by name, not by value."""
        if isinstance(fn, str | FunctionType) and (known := self._refs.get(fn)):
            return known
        ref = refer_to(fn)
        if isinstance(fn, str | FunctionType) and not ref.by_value:
            self._refs[fn] = ref
        return ref

    def _submit(self, ref: FunctionRef, call: Call, limit_s: float) -> Future[Score]:
        with contextlib.suppress(RuntimeError):  # shut down
            return self._threads.submit(self._run, ref, call, limit_s)
        raise self._closed_error(call.where)

    def _run(self, ref: FunctionRef, call: Call, limit_s: float) -> Score:
        """In one of the pool's threads, with the process that is this thread's own."""
        process: GradingProcess | None = getattr(self._own, "process", None)
        if process is None or not process.usable():
            process = self._replace(process, call.where)
        try:
            return process.call(ref, call, limit_s)
        except GraderError:
            if self._closed:
                raise self._closed_error(call.where) from None
            raise

    def _replace(self, old: GradingProcess | None, where: str) -> GradingProcess:
        with self._lock:
            if self._closed:
                raise self._closed_error(where)
            if old is not None:
                self._processes.discard(old)
                old.close()
            new = self._own.process = GradingProcess(self.memory_mb)
            self._processes.add(new)
        return new

    @staticmethod
    def _closed_error(where: str) -> GraderError:
        return GraderError(f"{where}: the reward pool was closed before this was graded")
