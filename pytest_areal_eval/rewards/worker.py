"""The process that grades: reads one request at a time, runs it in its main thread, answers in JSON.

Invariant: whatever a reward function does, the pool sees one answer or the end of the connection.  Requests are pickles
because arguments are any objects; answers come from where the user's code ran, so nothing of theirs is unpickled.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import resource
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from pytest_areal_eval.api import Score
from pytest_areal_eval.errors import GraderError
from pytest_areal_eval.rewards import processes
from pytest_areal_eval.rewards.importing import FunctionRef
from pytest_areal_eval.rewards.values import as_score

_MB = 1 << 20
_FRAMES = 12
_MESSAGE = 2000


@dataclass(frozen=True)
class Load:
    """Make a function callable as ``number``."""

    number: int
    ref: FunctionRef


@dataclass(frozen=True)
class Call:
    """Grade once.

    Attributes:
        number: the function, as :class:`Load` numbered it.
        arguments: its pickled ``(args, kwargs)``; pickled apart so that a failure to read them costs this call alone.
        where: the item, as messages name it.
        reward_range: lowest and highest reward.
    """

    number: int
    arguments: bytes
    where: str
    reward_range: tuple[float, float] | None


def main(fd: int, memory_mb: int) -> None:
    """Serve the connection on ``fd`` until its other end closes; ``memory_mb`` 0 sets no limit."""
    processes.die_with_parent()
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(fd)
    os.register_at_fork(after_in_child=connection.close)
    if memory_mb:
        # Not RLIMIT_AS: that also counts the gigabytes of libraries that a CUDA build of torch maps and never touches.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb * _MB, memory_mb * _MB))
    serve(connection)


def serve(connection: Connection) -> None:
    """Answer requests until the connection closes."""
    functions: dict[int, Callable[..., Any]] = {}
    while True:
        try:
            request: Load | Call = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            if isinstance(request, Load):
                functions[request.number] = request.ref.resolve()
                _answer(connection, {"ready": True})
            else:
                _answer(connection, _to_json(grade(functions[request.number], request)))
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the user's code too
            _answer(connection, describe(error))


def grade(fn: Callable[..., Any], call: Call) -> Score:
    """Run the reward function, await what it returns if it is awaitable, and read the score."""
    args, kwargs = pickle.loads(call.arguments)
    value = fn(*args, **kwargs)
    if inspect.isawaitable(value):
        value = asyncio.run(_wait_for(value))
    return as_score(value, call.where, call.reward_range)


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as an answer: its text, and the frames that belong to the user."""
    if isinstance(error, GraderError):
        return {"refused": error.args[0], "hint": error.hint}
    frames = traceback.extract_tb(error.__traceback__)
    ours = {__file__, inspect.getfile(FunctionRef)}
    users = [frame for frame in frames if frame.filename not in ours and "importlib" not in frame.filename]
    lines = "".join(traceback.format_list(users[-_FRAMES:])).rstrip()
    text = "".join(traceback.format_exception_only(error)).strip()[:_MESSAGE]
    return {"raised": text, "traceback": f"{lines}\n{text}".lstrip("\n"), "memory": isinstance(error, MemoryError)}


def _to_json(score: Score) -> dict[str, Any]:
    metrics: Mapping[str, float] = score.metrics
    return {"score": [score.value, dict(metrics), score.extracted, score.gold]}


def _answer(connection: Connection, answer: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(answer).encode())


async def _wait_for(value: Any) -> Any:
    return await value
