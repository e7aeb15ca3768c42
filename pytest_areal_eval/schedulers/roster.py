"""What each scheduler remembers of the instances that it has started, and that it closes once.

Invariant: nothing started is forgotten, and only the process that started it ends it: a fork closes nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.schedulers.base import Handle, Lost, Scheduler, State, Status


class Instance(Protocol):
    """What a scheduler keeps of one instance."""

    handle: Handle


T = TypeVar("T", bound=Instance)


class Roster(Generic[T]):
    """The instances of one scheduler.  No method waits for another, so that a signal handler may close the scheduler.

    Args:
        scheduler: is closed when the interpreter ends.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner = os.getpid()
        self._instances: dict[Handle, T] = {}
        self._attempts: Counter[str] = Counter()
        self._closed = threading.Event()
        atexit.register(self._close_at_exit)

    @property
    def closed(self) -> bool:
        """Whether the scheduler is closed, or about to be."""
        return self._closed.is_set()

    def check_open(self, name: str) -> None:
        """Raise :class:`~pytest_areal_eval.errors.SchedulerError` where nothing may be started any more."""
        if self.closed:
            raise SchedulerError(f"{name} cannot start: the {self._scheduler.name} scheduler is closed.")

    def next_attempt(self, name: str) -> int:
        """Which start of this instance the next one is, from 1."""
        self._attempts[name] += 1
        return self._attempts[name]

    def add(self, instance: T) -> Handle:
        """Remember an instance; one that came while another thread closed the scheduler is stopped."""
        self._instances[instance.handle] = instance
        if self.closed:
            self._scheduler.stop([instance.handle])
        return instance.handle

    def all(self) -> list[T]:
        """Every instance, in the order of their starts."""
        return list(self._instances.values())

    def of(self, handles: Iterable[Handle]) -> list[T]:
        """Those of them that this scheduler has started."""
        return [self._instances[handle] for handle in handles if handle in self._instances]

    def known(self, handle: Handle) -> T:
        """The instance, or a :class:`~pytest_areal_eval.errors.SchedulerError` where it is another scheduler's."""
        if handle not in self._instances:
            raise SchedulerError(f"{handle.name} (attempt {handle.attempt}) was not started by this scheduler.")
        return self._instances[handle]

    def find(self, handle: Handle) -> T | Status:
        """The instance; a status that says so where it is another scheduler's."""
        stranger = Status(State.GONE, f"{handle.name} was not started by this scheduler", lost=Lost.UNKNOWN)
        return self._instances.get(handle, stranger)

    def begin_to_close(self) -> bool:
        """Whether this is the call that closes: the first one, in the process that owns the instances."""
        if self.closed or os.getpid() != self._owner:
            return False
        self._closed.set()
        atexit.unregister(self._close_at_exit)
        return True

    def _close_at_exit(self) -> None:
        """Nobody is left to catch what goes wrong."""
        try:
            self._scheduler.close()
        except SchedulerError as error:
            sys.stderr.write(f"The {self._scheduler.name} scheduler could not end all that it had started: {error}\n")
