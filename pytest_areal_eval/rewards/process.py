"""A grader and its keeper, seen from the pool: blocking, owned by one thread, one call at a time."""

from __future__ import annotations

import contextlib
import json
import pickle
import select
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest_areal_eval
from pytest_areal_eval.api import Score
from pytest_areal_eval.errors import GraderError, GraderTimeout
from pytest_areal_eval.rewards.importing import FunctionRef
from pytest_areal_eval.rewards.processes import signal_name
from pytest_areal_eval.rewards.worker import Call, Load

START_LIMIT_S = 60.0
LOAD_LIMIT_S = 120.0
_END_LIMIT_S = 10.0
_EXIT_GRACE_S = 1.0
_FUNCTIONS_KEPT = 256
_MOST_MS = 2**31 - 1
"""What poll takes: 24 days, for somebody who means "no limit"."""
_PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from pytest_areal_eval.rewards.keeper import main
main(int(sys.argv[2]), int(sys.argv[3]))
"""


class GradingProcess:
    """A keeper, and whichever grader it has at the moment.

    The keeper starts here; that it is ready is awaited by the first call.

    Args:
        memory_mb: what a grader may allocate; None for no limit.
    """

    def __init__(self, memory_mb: int | None) -> None:
        self._memory_mb = memory_mb
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._grader: Connection | None = None
        self._answers = select.poll()
        self._pid = b""
        self._numbers: dict[FunctionRef, int] = {}
        self._lost = False
        root = str(Path(pytest_areal_eval.__file__).parents[1])
        with theirs:
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, root, str(theirs.fileno()), str(memory_mb or 0)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
            )

    def usable(self) -> bool:
        """Whether the keeper lives."""
        return not self._lost and self._keeper.poll() is None

    def call(self, ref: FunctionRef, call: Call, limit_s: float) -> Score:
        """Grade once.

        Args:
            ref: the reward function.
            call: its arguments; its number is filled in here.
            limit_s: seconds that the function may take.

        Raises:
            GraderTimeout: the limit passed; the grader and its children are gone.
            GraderError: the function raised or cannot be imported, the grader died, or the value is no reward.
        """
        if self._grader is not None and self._readable(0.0):  # between calls only its end makes it readable
            self._end(_EXIT_GRACE_S)
        if self._grader is None:
            self._grader = self._next_grader(call.where)
        number = self._load(ref, call.where)
        named = f"{call.where}: reward function {ref.name!r}"
        late = f"{named} did not return within {limit_s:g} s and was killed"
        answer = self._exchange(replace(call, number=number), limit_s, named, late)
        value, metrics, extracted, gold = answer["score"]
        return Score(value, metrics, extracted, gold)

    def hang_up(self) -> None:
        """Have the keeper kill all below it and leave, without waiting for it.  May be called from any thread."""
        self._lost = True
        with contextlib.suppress(OSError):  # closed already
            self._control.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the keeper and all below it.  May be called from any thread, more than once."""
        self.hang_up()
        try:
            self._keeper.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()

    def close(self) -> None:
        """Kill, and free the descriptors; for the owner alone."""
        self.kill()
        self._control.close()
        self._stderr.close()
        if self._grader is not None:
            self._grader.close()

    def _next_grader(self, where: str) -> Connection:
        self._control.settimeout(START_LIMIT_S)
        try:
            self._pid, fds, _, _ = socket.recv_fds(self._control, 16, 1)
        except TimeoutError:
            self.kill()
            hint = "Check the machine's load and memory."
            raise GraderError(f"{where}: no grading process was ready within {START_LIMIT_S:g} s", hint) from None
        if not fds:
            self._lost = True
            raise GraderError(f"{where}: no grading process could be started", self._last_words())
        self._numbers.clear()
        self._answers = select.poll()
        self._answers.register(fds[0], select.POLLIN)
        return Connection(fds[0])

    def _readable(self, limit_s: float) -> bool:
        """Whether the grader answers in time, or ends; ``Connection.poll`` asks the same in three times the time."""
        return bool(self._answers.poll(min(limit_s * 1e3, _MOST_MS)))

    def _load(self, ref: FunctionRef, where: str) -> int:
        """The function's number in the grader, which imports it first if it is new there."""
        known = self._numbers.get(ref)
        if known is not None:
            return known
        if len(self._numbers) == _FUNCTIONS_KEPT:  # closures, made anew for each item
            self._numbers.clear()
        number = len(self._numbers)
        named = f"{where}: reward function {ref.name!r} cannot be loaded: it"
        self._exchange(Load(number, ref), LOAD_LIMIT_S, named, f"{named} took over {LOAD_LIMIT_S:g} s to import")
        self._numbers[ref] = number
        return number

    def _exchange(self, request: Load | Call, limit_s: float, named: str, late: str) -> dict[str, Any]:
        """Send a request and wait for its answer; an answer that is an error is raised."""
        assert self._grader is not None
        try:
            self._grader.send_bytes(pickle.dumps(request))
            if not self._readable(limit_s):
                self._end()
                raise self._late(request, late)
            answer: dict[str, Any] = json.loads(self._grader.recv_bytes())
        except (OSError, EOFError, ValueError):  # the last: the user's code wrote to our socket
            raise self._death(named, self._end(_EXIT_GRACE_S)) from None
        if "refused" in answer:
            raise GraderError(answer["refused"], answer["hint"])
        if "raised" in answer:
            raise self._raised(answer, named)
        return answer

    def _end(self, grace_s: float = 0.0) -> int | None:
        """End the grader with all that it started; its exit code, None if the keeper is gone too.

        Args:
            grace_s: seconds to wait for its own exit, where its connection closed, before it is killed.
        """
        if self._grader is not None:
            self._grader.close()
            self._grader = None
        try:
            if grace_s == 0.0 or not select.select([self._control], [], [], grace_s)[0]:
                self._control.send(self._pid)
            self._control.settimeout(_END_LIMIT_S)
            code = self._control.recv(16)
        except OSError:
            code = b""
        if not code:
            self.kill()
        return int(code) if code else None

    @staticmethod
    def _late(request: Load | Call, message: str) -> GraderTimeout | GraderError:
        if isinstance(request, Call):
            return GraderTimeout(message, "If it needs longer, raise the time limit of rewards.")
        return GraderError(message, "Make its module import faster, or check the machine's load and disk.")

    def _raised(self, answer: dict[str, Any], named: str) -> GraderError:
        hint = ""
        if answer["memory"]:
            self._end()  # what fills its memory may be kept by the user's module
            hint = f"{self._memory()}; raise the memory limit of rewards or use less."
        return GraderError(f"{named} raised {answer['raised']}", hint, traceback=answer["traceback"])

    def _death(self, named: str, code: int | None) -> GraderError:
        if code is None:
            how = "lost its process"
        elif code < 0:
            how = f"was killed by {signal_name(-code)}"
        else:
            how = f"ended its process with exit status {code}"
        hint = f"{self._memory()}; more may have killed it." if code is None or code < 0 else ""
        return GraderError(f"{named} {how}", hint)

    def _memory(self) -> str:
        limit = "as much as there is" if self._memory_mb is None else f"{self._memory_mb} MB"
        return f"A grading process may use {limit}"

    def _last_words(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace").strip()[-2000:]
