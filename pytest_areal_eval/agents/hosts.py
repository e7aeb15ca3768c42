"""The processes that agents run in, seen from the controller's loop.

Agents get processes of their own for three reasons: one that blocks its event loop must not stall the engine's; their
SDKs need milliseconds of CPU a call; and libraries that use ``signal.alarm``, as math-verify does, work in a
main thread only.

Invariant: a job ends exactly once: with what the agent returned, with its exception, or with its process's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest_areal_eval
from pytest_areal_eval.agents.process import HEAD, AgentRef, Job
from pytest_areal_eval.errors import AgentError
from pytest_areal_eval.rewards.processes import signal_name
from pytest_areal_eval.stats.tracker import absorb

FEW = 32
"""Agents in one process before another is started."""
BLOCKED_LIMIT_S = 30.0
"""How long an agent may block the others of its process before the process is killed."""
END_LIMIT_S = 5.0
_PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from pytest_areal_eval.agents.process import main
main(int(sys.argv[2]))
"""


@dataclass(frozen=True)
class Blocked:
    """An agent that keeps the event loop of its process busy."""

    job: int | None
    seconds: float
    where: str


class AgentHosts:
    """The processes of one agent; started as they are needed.

    Args:
        ref: the agent.
        most: how many processes there may be.
        warn: receives a line about an agent that blocks.
    """

    def __init__(self, ref: AgentRef, most: int, warn: Callable[[str], None]) -> None:
        self._ref = ref
        self._most = most
        self._warn = warn
        self._hosts: list[_Host] = []
        # An agent that reads its address from the environment has its process for itself.
        self._few = FEW if ref.takes_address else 1
        self._turns = None if ref.takes_address else asyncio.Semaphore(most)

    async def run(self, job: Job, waiting: AbstractContextManager[None]) -> Any:
        """Run the agent once.

        Args:
            job: what it works on.
            waiting: entered while all processes are taken.

        Returns:
            A number, or a dict of numbers and texts.

        Raises:
            AgentError: it raised, returned something else, or its process ended.
        """
        if self._turns is None:
            return await self._idlest().run(job)
        with waiting:
            await self._turns.acquire()
        try:
            return await self._idlest().run(job)
        finally:
            self._turns.release()

    async def close(self) -> None:
        """End the processes and wait for them."""
        self.kill()
        await asyncio.gather(*(host.ended for host in self._hosts))

    def kill(self) -> None:
        """End the processes; from any thread."""
        for host in self._hosts:
            host.kill()

    def _idlest(self) -> _Host:
        self._hosts = [host for host in self._hosts if not host.ended.done()]
        usable = [host for host in self._hosts if not host.killed]
        host = min(usable, key=lambda h: h.load, default=None)
        if host is None or (host.load >= self._few and len(usable) < self._most):
            host = _Host(self._ref, self._warn)
            self._hosts.append(host)
        return host


class _Host:
    """One process, and the jobs that run in it."""

    def __init__(self, ref: AgentRef, warn: Callable[[str], None]) -> None:
        self.killed = False
        self._ref = ref
        self._warn = warn
        self._jobs: dict[int, asyncio.Future[Any]] = {}
        self._items: dict[int, str] = {}
        self._count = 0
        self._blocked: Blocked | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        ours, theirs = socket.socketpair()
        root = str(Path(pytest_areal_eval.__file__).parents[1])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, root, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._send(ref)
        self.ended = asyncio.get_running_loop().create_task(self._serve(ours))

    @property
    def load(self) -> int:
        """Jobs in it."""
        return len(self._jobs)

    async def run(self, job: Job) -> Any:
        """See :meth:`AgentHosts.run`."""
        number, self._count = self._count, self._count + 1
        future = self._jobs[number] = asyncio.get_running_loop().create_future()
        self._items[number] = job.item_id
        self._send((number, job))
        try:
            answer = await future
        except asyncio.CancelledError:
            if self._ref.takes_address:
                self._send((number, None))
            else:  # alone in its process, and perhaps in a blocking call that hears nothing
                self.kill()
            raise
        finally:
            self._jobs.pop(number, None)
        absorb(answer["stats"])
        if "raised" in answer:
            raise AgentError(answer["raised"], traceback=answer["traceback"])
        return answer["returned"]

    def kill(self) -> None:
        """End the process and its group; from any thread."""
        self.killed = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _serve(self, ours: socket.socket) -> None:
        """Carry messages in both directions until the process ends, then settle what is left."""
        reader, writer = await asyncio.open_connection(sock=ours)
        sending = asyncio.get_running_loop().create_task(self._write(writer))
        try:
            while True:
                (size,) = HEAD.unpack(await reader.readexactly(HEAD.size))
                self._hear(json.loads(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError, ValueError, LookupError, TypeError):
            pass  # its end, or the agent's own code wrote to our socket
        finally:
            sending.cancel()
            writer.close()
            self.kill()
            code = -int(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel still holds what was killed
                code = await asyncio.to_thread(self._process.wait, END_LIMIT_S)
            self._settle(code)
            self._output.close()

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the reader notices as well
            while True:
                message = await self._outgoing.get()
                writer.write(HEAD.pack(len(message)) + message)
                await writer.drain()

    def _send(self, message: Any) -> None:
        self._outgoing.put_nowait(pickle.dumps(message))

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "blocked" in message:
            self._note(Blocked(message["job"], message["blocked"], message["where"]))
            return
        self._blocked = None
        future = self._jobs.get(message["job"])
        self._items.pop(message["job"], None)
        if future is None or future.done():
            return
        future.set_result(message)

    def _note(self, blocked: Blocked) -> None:
        if not self._ref.takes_address:
            return  # it is alone in its process, so it may
        if self._blocked is None:
            self._warn(f"{self._who(blocked)}: the {self.load - 1} others of its process wait")
        self._blocked = blocked
        if blocked.seconds > BLOCKED_LIMIT_S:
            self.kill()

    def _who(self, blocked: Blocked) -> str:
        item = self._items.get(-1 if blocked.job is None else blocked.job)
        named = f"agent {self._ref.name}" + (f", item {item!r}" if item else "")
        return f"{named} blocks its event loop for {blocked.seconds:.0f} s at {blocked.where}"

    def _settle(self, code: int) -> None:
        if self._blocked is not None:
            said = f"{self._who(self._blocked)}; its process was killed with all the agents in it"
            hint = "Await an async client there, or move the call to asyncio.to_thread()."
        else:
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit status {code}"
            said, hint = f"agent {self._ref.name}: its process {how}", self._last_words()
        for future in self._jobs.values():
            if not future.done():
                future.set_exception(AgentError(said, hint))

    def _last_words(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace").strip()[-2000:]
