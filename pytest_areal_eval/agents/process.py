"""The process that agents run in: many at a time, in the event loop of its main thread.

Invariant: whatever an agent does, its job gets one answer or the process ends.  Jobs come as pickles, because records
are any objects; answers are JSON, so nothing of the agent's is unpickled.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_areal_eval.agents.client import HttpClients
from pytest_areal_eval.api import Score
from pytest_areal_eval.rewards import processes
from pytest_areal_eval.rewards.importing import FunctionRef
from pytest_areal_eval.stats.cells import cells_state
from pytest_areal_eval.stats.tracker import Trackers, adopt
from pytest_areal_eval.workflows import context

HEAD = struct.Struct("!I")
"""Before each message: its size in bytes."""

BEAT_S = 0.25
BLOCKED_S = 5.0
"""How late the loop may be before somebody is told."""
_FRAMES = 12
_job: ContextVar[int | None] = ContextVar("areal_eval_agent", default=None)


@dataclass(frozen=True)
class AgentRef:
    """An agent, as it can be sent to another process.

    Attributes:
        name: how messages call it.
        function: resolves to its ``run``, or to what makes it.
        makes: the latter: each job gets an agent of its own.
        takes_address: ``run`` takes ``base_url`` and ``api_key``; else they are put into the environment.
    """

    name: str
    function: FunctionRef
    makes: bool
    takes_address: bool


@dataclass(frozen=True)
class Job:
    """One episode of an agent.

    Attributes:
        data: the record.
        base_url: the proxy's root.
        api_key: valid during this job.
        item_id, evaluation, episode_index, group_size, task_id, seed: the workflow context.
    """

    data: dict[str, Any]
    base_url: str
    api_key: str
    item_id: str
    evaluation: str
    episode_index: int
    group_size: int
    task_id: int | None
    seed: int | None


def main(fd: int) -> None:
    """Serve the connection on ``fd`` until its other end closes."""
    processes.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = f"127.0.0.1,{own}"
    connection = socket.socket(fileno=fd)
    asyncio.run(_Process(connection).serve())


class _Process:
    """What the process does: a thread reads jobs, the loop runs them, another thread watches the loop."""

    def __init__(self, connection: socket.socket) -> None:
        self._incoming = connection.makefile("rb")
        self._connection = connection
        self._sending = threading.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._clients = HttpClients()
        self._beat = time.monotonic()

    async def serve(self) -> None:
        """Run jobs; never returns, since the reading thread ends the process."""
        loop = asyncio.get_running_loop()
        self._ref: AgentRef = self._read()
        threading.Thread(target=self._listen, args=[loop], daemon=True).start()
        threading.Thread(target=self._watch, args=[loop], daemon=True).start()
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over what comes; the end of the connection ends the process, even while an agent blocks it."""
        while True:
            number, job = self._read()
            loop.call_soon_threadsafe(self._begin, number, job)

    def _read(self) -> Any:
        head = self._incoming.read(HEAD.size)
        if len(head) < HEAD.size:
            os._exit(0)
        return pickle.loads(self._incoming.read(HEAD.unpack(head)[0]))

    def _begin(self, number: int, job: Job | None) -> None:
        if job is None:
            if number in self._tasks:
                self._tasks[number].cancel()
            return
        task = self._tasks[number] = asyncio.get_running_loop().create_task(self._run(number, job))
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _run(self, number: int, job: Job) -> None:
        _job.set(number)
        recorded = adopt(Trackers())
        try:
            answer: dict[str, Any] = {"returned": plain(await self._call(job))}
        except BaseException as error:  # SystemExit in an agent must not end the others
            answer = _raised(error)
        self._send(answer | {"job": number, "stats": cells_state(dict(recorded))})

    async def _call(self, job: Job) -> Any:
        context.set(
            context.WorkflowContext(
                task_id=job.task_id,
                item_id=job.item_id,
                evaluation=job.evaluation,
                episode_index=job.episode_index,
                group_size=job.group_size,
                seed=job.seed,
                agents=SimpleNamespace(clients=self._clients),
            )
        )
        found = self._ref.function.resolve()
        run: Callable[..., Any] = found().run if self._ref.makes else found
        if self._ref.takes_address:
            async with self._clients.client() as http_client:
                return await run(job.data, **address(run, job.base_url, job.api_key, http_client))
        for company in ("OPENAI", "ANTHROPIC"):
            os.environ[f"{company}_BASE_URL"], os.environ[f"{company}_API_KEY"] = job.base_url, job.api_key
        return await run(job.data)

    def _send(self, message: Mapping[str, Any]) -> None:
        text = json.dumps(message).encode()
        with self._sending:
            self._connection.sendall(HEAD.pack(len(text)) + text)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say who blocks the loop, as long as it is blocked."""
        while True:
            time.sleep(BLOCKED_S)
            late_s = time.monotonic() - self._beat - BEAT_S
            if late_s > BLOCKED_S:
                main_thread = threading.main_thread().ident
                frame = sys._current_frames()[main_thread or 0]
                self._send({"blocked": late_s, "job": _running(loop, self._tasks), "where": _place(frame)})


def takes_address(run: Callable[..., Any]) -> bool:
    """Whether an agent's ``run`` has a place for ``base_url``."""
    parameters = inspect.signature(run).parameters
    return "base_url" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def address(run: Callable[..., Any], base_url: str, api_key: str, http_client: Any) -> dict[str, Any]:
    """The keywords of an agent's ``run``: all three, or those that it has parameters for."""
    given = {"base_url": base_url, "api_key": api_key, "http_client": http_client}
    parameters = inspect.signature(run).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def plain(value: Any) -> Any:
    """A reward as JSON: None, a number, or a dict of numbers and texts.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(value, Score):
        texts = {"extracted": value.extracted, "gold": value.gold}
        return {"reward": float(value.value), **value.metrics, **{k: v for k, v in texts.items() if v is not None}}
    if hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    raise TypeError(f"the agent returned a {type(value).__name__}; return a number, or a dict of call ids and numbers")


def _raised(error: BaseException) -> dict[str, Any]:
    """An exception's text and the user's frames, with the innermost one, which may be a library's."""
    frames = list(traceback.extract_tb(error.__traceback__))
    users = [frame for frame in frames if _is_users(frame)]
    shown = users[-_FRAMES:] + [frame for frame in frames[-1:] if frame not in users]
    text = "".join(traceback.format_exception_only(error)).strip()
    lines = "".join(traceback.format_list(shown)).rstrip()
    return {"raised": text[:2000], "traceback": f"{lines}\n{text}".lstrip("\n")}


def _running(loop: asyncio.AbstractEventLoop, jobs: Mapping[int, asyncio.Task[None]]) -> int | None:
    """The job whose step the loop is in; in a task that the agent started, only Python 3.12 and later know it."""
    task = asyncio.current_task(loop)
    get_context = getattr(task, "get_context", None)
    if get_context is not None:
        job: int | None = get_context().get(_job)
        return job
    return next((number for number, known in tuple(jobs.items()) if known is task), None)


def _place(frame: Any) -> str:
    """The innermost frame of the user's."""
    frames = traceback.extract_stack(frame)
    found = ([f for f in frames if _is_users(f)] or frames)[-1]
    return f"{found.filename}:{found.lineno} in {found.name}()"


def _is_users(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is neither ours nor the standard library's nor of what is installed."""
    ours_and_standard = (str(Path(__file__).parents[1]), str(Path(asyncio.__file__).parents[1]))
    return "site-packages" not in frame.filename and not frame.filename.startswith(ours_and_standard)
