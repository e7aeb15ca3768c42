"""A scheduler seen from the event loop: its calls run in a thread, and nothing that it started is ever forgotten."""

from __future__ import annotations

import asyncio
import re
import shlex
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pytest_areal_eval.controller.placement import Placement
from pytest_areal_eval.controller.settings import Needs
from pytest_areal_eval.engines.base import Endpoint, Gang, Launch, describe
from pytest_areal_eval.engines.flags import as_flags
from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.redact import redact_text
from pytest_areal_eval.schedulers.base import Address, Handle, InstanceSpec, Scheduler, Shape, Status
from pytest_areal_eval.schedulers.postmortem import LAST_LINE

STOP_GRACE_S = 5.0
STOP_LIMIT_S = 20.0
"""After the grace, Slurm takes 13 s to give up on a node that is dead."""
TAIL_LINES = 20
LINE_CHARS = 500
"""What a message takes of one line of a log: vLLM lists all of a model's parameters in one."""
STAGE_LINES = 400
ERROR = re.compile(r"(?:^|[\s.])\w*(?:Error|Exception)\b: .")


class Instances:
    """The server processes of one run.

    Args:
        scheduler: starts, watches and stops them.
        token: the session's secret, as their engine's launch has put it into their environment.
        server_args: further options of the server's command, ``{"mem_fraction_static": 0.8}``.
        start_timeout_s: overrides the engine's; None keeps it.
        needs: what they are given beyond what their engine asks for.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        token: str,
        server_args: Mapping[str, Any] | None,
        start_timeout_s: float | None,
        needs: Needs | None = None,
    ) -> None:
        self._token = token
        self._scheduler = scheduler
        self._needs = needs or Needs()
        self._placement = Placement(scheduler, self._needs)
        self._extra = as_flags(server_args or {})
        self._start_timeout_s = start_timeout_s
        self._lock = threading.Condition()
        self._ending: set[Handle] = set()
        self._handles: list[Handle] = []
        self._commands: dict[Handle, tuple[str, ...]] = {}
        self._addresses: dict[Handle, Address] = {}
        self._closed = False

    async def check(self, replicas: Sequence[Launch]) -> None:
        """Raise :class:`~pytest_areal_eval.errors.CannotFit` if they can never all run at once."""
        await asyncio.to_thread(self._placement.check, replicas)

    async def start(self, name: str, launch: Launch, avoid: Collection[str] = ()) -> Handle:
        """Queue an instance, on other nodes than ``avoid``; the scheduler's own errors are raised."""
        return await asyncio.to_thread(self._start, name, launch, avoid)

    async def is_room(self, name: str, launch: Launch, without: Collection[str]) -> bool:
        """Whether other nodes than ``without`` have what it needs free now."""
        return await asyncio.to_thread(self._placement.is_room, name, launch, without)

    async def blame(self, node: str) -> str:
        """Count a loss on a node; returns what to say if it is not used again."""
        return await asyncio.to_thread(self._placement.blame, node)

    async def poll(self, handles: Sequence[Handle]) -> dict[Handle, Status]:
        """Their states, in one query."""
        statuses = await asyncio.to_thread(self._scheduler.poll, handles)
        self._addresses.update({h: s.address for h, s in statuses.items() if s.address is not None})
        return statuses

    async def stop(self, handle: Handle) -> None:
        """End one instance; its thread goes on where the wait for it is cancelled."""
        await asyncio.to_thread(self._stop, handle)

    def stop_all(self) -> None:
        """End every instance, and start none any more; from any thread.  Those that are just ending are waited for."""
        with self._lock:
            self._closed = True
            handles, self._handles = [handle for handle in self._handles if handle not in self._ending], []
        try:
            if handles:
                self._scheduler.stop(handles, STOP_GRACE_S)
        finally:
            with self._lock:
                self._lock.wait_for(lambda: not self._ending, STOP_LIMIT_S)

    def endpoint(self, name: str, address: Address) -> Endpoint:
        """Where an instance is reached."""
        host = f"[{address.host}]" if ":" in address.host else address.host
        return Endpoint(name, f"http://{host}:{address.port}", self._token)

    async def stage(self, handle: Handle, stages: Sequence[tuple[str, str]]) -> str:
        """What it does, by its log: the newest of ``stages`` there, else "loads", and the last line if there is one."""
        tail = await asyncio.to_thread(self._scheduler.log_tail, handle, STAGE_LINES if stages else 1)
        lines = tail.strip().splitlines()
        found = (does for line in reversed(lines) for pattern, does in stages if re.search(pattern, line))
        return ": ".join([next(found, "loads"), *(describe(line.strip()) for line in lines[-1:])])

    def log_path(self, handle: Handle) -> str:
        """Where its log is."""
        return self._scheduler.log_path(handle)

    async def obituary(self, handle: Handle, why: str) -> str:
        """Why an instance is gone, with its command, its log's path and the log's end."""
        tail = await asyncio.to_thread(self._scheduler.log_tail, handle, STAGE_LINES)
        lines = tail.rstrip().splitlines()
        # What ends a server is often followed by hundreds of lines about its ending.
        first = next((line.strip() for line in lines[:-TAIL_LINES] if ERROR.search(line)), "")
        log = f"{self.log_path(handle)}, its end:" if lines else f"{self.log_path(handle)} (empty)"
        said = [f"its first error: {describe(first, LINE_CHARS)}"] if first else []
        ends = [describe(line, LINE_CHARS) for line in lines[-TAIL_LINES:]]
        why = why.partition(LAST_LINE)[0]  # the log's end follows
        return "\n".join([why, *said, f"command: {self._command(handle)}", f"log: {log}", *ends])

    def _stop(self, handle: Handle) -> None:
        with self._lock:
            self._ending.add(handle)
        try:
            self._scheduler.stop([handle], STOP_GRACE_S)
        finally:
            with self._lock:
                self._ending.discard(handle)
                self._lock.notify_all()

    def _start(self, name: str, launch: Launch, avoid: Collection[str]) -> Handle:
        spec = self._spec(name, launch, self._placement.shape(name, launch))
        with self._lock:  # so that stop_all sees every handle
            if self._closed:
                raise SchedulerError(f"{spec.name} is not started: the run ends")
            handle = self._scheduler.start(spec, self._placement.excluded.union(avoid))
            self._handles.append(handle)
            typed = launch.argv if launch.typed is None else launch.typed
            self._commands[handle] = typed + spec.argv[len(launch.argv) :]
        return handle

    def _spec(self, name: str, launch: Launch, shape: Shape) -> InstanceSpec:
        gang = launch.gang if launch.gang is not None and shape.nodes > 1 else Gang(())
        return InstanceSpec(
            name=name,
            argv=launch.argv + gang.every + self._extra,
            env={**self._needs.env, **launch.env},
            shape=shape,
            ready_path=launch.ready_path,
            start_timeout_s=self._start_timeout_s or launch.start_timeout_s,
            followers=gang.followers,
        )

    def _command(self, handle: Handle) -> str:
        argv, address = self._commands[handle], self._addresses.get(handle)
        if address is not None:
            known = {"{host}": address.host, "{port}": str(address.port), "{nonce}": address.nonce}
            for placeholder, value in known.items():
                argv = tuple(word.replace(placeholder, value) for word in argv)
        return redact_text(shlex.join(argv))
