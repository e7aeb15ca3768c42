"""One grading process, seen from its parent: blocking, owned by one thread, killed with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest_areal_eval
from pytest_areal_eval.api import Score
from pytest_areal_eval.errors import GraderError, GraderTimeout
from pytest_areal_eval.rewards.importing import FunctionRef
from pytest_areal_eval.rewards.processes import kill_tree
from pytest_areal_eval.rewards.worker import Call, Load

START_LIMIT_S = 60.0
LOAD_LIMIT_S = 120.0
_FUNCTIONS_KEPT = 256
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from pytest_areal_eval.rewards.worker import main
main(*map(int, sys.argv[1:]))
"""


class GradingProcess:
    """Starts at once; says that it is ready at its first call.

    Args:
        memory_mb: limit of its address space; None for no limit.
    """

    def __init__(self, memory_mb: int | None) -> None:
        ours, theirs = socket.socketpair()
        self._memory_mb = memory_mb
        self._connection = Connection(ours.detach())
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        root = str(Path(pytest_areal_eval.__file__).parents[1])
        numbers = [str(n) for n in (theirs.fileno(), os.getpid(), memory_mb or 0)]
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, root, *numbers],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
            )
        self._ready = False
        self._numbers: dict[FunctionRef, int] = {}
        self._kill_lock = threading.Lock()
        self._killed = False

    def usable(self) -> bool:
        """Whether it lives and owes nothing: between calls only the end of the connection makes it readable."""
        return not self._killed and not (self._ready and self._connection.poll(0))

    def call(self, ref: FunctionRef, call: Call) -> Score:
        """Grade once; the process is not usable afterwards if the call was its end.

        Raises:
            GraderTimeout: the limit passed; the process and its children are gone.
            GraderError: the function raised or cannot be imported, the process died, or the value is no reward.
        """
        if not self._ready:
            self._exchange(None, START_LIMIT_S, call.where, "the grading process did not start")
            self._ready = True
        number = self._load(ref, call.where)
        named = f"{call.where}: reward function {ref.name!r}"
        late = f"{named} did not return within {call.timeout_s:g} s and was killed"
        answer = self._exchange(replace(call, number=number), call.timeout_s, named, late)
        value, metrics, extracted, gold = answer["score"]
        return Score(value, metrics, extracted, gold)

    def kill(self) -> None:
        """Kill it and all that it started.  May be called from any thread; a second call does nothing."""
        with self._kill_lock:
            if self._killed:
                return
            self._killed = True
            # Not reaped yet, so neither its pid nor its group's can have been reused.
            kill_tree(self._popen.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()

    def close(self) -> None:
        """Kill it and free its descriptors; for the owner alone."""
        self.kill()
        self._connection.close()
        self._stderr.close()

    def _load(self, ref: FunctionRef, where: str) -> int:
        """The function's number in the process, which imports it first if it is new there."""
        known = self._numbers.get(ref)
        if known is not None:
            return known
        if len(self._numbers) == _FUNCTIONS_KEPT:  # a closure made anew for each item
            self._numbers.clear()
        number = len(self._numbers)
        named = f"{where}: reward function {ref.name!r} cannot be loaded"
        self._exchange(Load(number, ref), LOAD_LIMIT_S, named, f"{named}: its import took over {LOAD_LIMIT_S:g} s")
        self._numbers[ref] = number
        return number

    def _exchange(self, request: Load | Call | None, limit_s: float, named: str, late: str) -> dict[str, Any]:
        """Send a request and wait for its answer; an answer that is an error is raised."""
        try:
            if request is not None:
                self._connection.send_bytes(pickle.dumps(request))
            if not self._connection.poll(limit_s):
                self.kill()
                raise self._late(request, late)
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            self.kill()
            raise self._death(named) from None
        if "refused" in answer:
            raise GraderError(answer["refused"], answer["hint"])
        if "raised" in answer:
            raise self._raised(answer, named)
        return answer

    @staticmethod
    def _late(request: Load | Call | None, message: str) -> GraderTimeout | GraderError:
        if isinstance(request, Call):
            return GraderTimeout(message, "If it needs longer, raise the time limit of rewards.")
        return GraderError(message, "Make its module import faster, or check the machine's load and disk.")

    def _raised(self, answer: dict[str, Any], named: str) -> GraderError:
        hint = ""
        if answer["memory"]:
            self.kill()  # what fills its memory may be kept by the user's module
            hint = f"A grading process may use {self._memory_mb} MB; raise the memory limit of rewards or use less."
        return GraderError(f"{named} raised {answer['raised']}", hint, traceback=answer["traceback"])

    def _death(self, named: str) -> GraderError:
        code = self._popen.wait()
        how = f"exited with status {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip()[-2000:]
        hint = f"A grading process may use {self._memory_mb} MB of memory." if code < 0 and self._memory_mb else ""
        return GraderError(f"{named}: its process {how} before it answered", hint, traceback=said)
