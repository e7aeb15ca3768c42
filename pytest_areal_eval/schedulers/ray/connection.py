"""The other end of ``driver.py``: a process that is connected to Ray, and what is asked of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.schedulers import logs, processes, supervise

ASK_LIMIT_S = 10.0
GRACE_S = 3.0
DRIVER = "pytest_areal_eval.schedulers.ray.driver"

_THIS_PROCESS_ONLY = ("PYTEST_", "COVERAGE_", "COV_CORE_", "RAY_ADDRESS")


class Connection:
    """The driver process.  Requests are packets, which the kernel keeps whole, so that no thread waits for another.

    Args:
        log_dir: receives what Ray says to a terminal, ``ray.log``.
        program: the driver's module.

    Raises:
        SchedulerError: the log cannot be written.
    """

    def __init__(self, log_dir: Path, program: str = DRIVER) -> None:
        self._log = log_dir / "ray.log"
        self._mark = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._boxes: dict[int, queue.SimpleQueue[Any]] = {}
        self._ended = threading.Event()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_THIS_PROCESS_ONLY)}
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", processes.MARK: self._mark}
        supervisor = [sys.executable, "-I", "-S", supervise.__file__, str(os.getpid()), str(GRACE_S), "--"]
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
            output = open(self._log, "wb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise SchedulerError(f"Ray cannot be connected to with a log in {self._log}: {error}.") from error
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(ASK_LIMIT_S)
        with output, theirs:
            self._process = subprocess.Popen(
                [*supervisor, sys.executable, "-P", "-m", program],  # a ray.py of the user's is not Ray
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        threading.Thread(target=self._read, name="areal-eval-ray", daemon=True).start()

    @property
    def lives(self) -> bool:
        """Whether it still answers."""
        return not self._ended.is_set()

    def ask(self, do: str, limit_s: float = ASK_LIMIT_S, **arguments: Any) -> Any:
        """Have something done by :class:`~pytest_areal_eval.schedulers.ray.driver.Cluster`.

        Raises:
            SchedulerError: it failed, took too long, or the driver is gone.
        """
        number, box = next(self._numbers), queue.SimpleQueue[Any]()
        self._boxes[number] = box
        try:
            if self.lives:
                self._requests.sendall(json.dumps({"number": number, "do": do, **arguments}).encode())
            answer = box.get(timeout=limit_s) if self.lives else None
        except (queue.Empty, TimeoutError):
            answer = {"error": f"no answer within {limit_s:g} s ({do}), its log is {self._log}"}
        except OSError:
            answer = None
        finally:
            self._boxes.pop(number, None)
        if answer is None:
            raise SchedulerError(f"The connection to Ray is lost: {self._last_words()}", "See how it is: ray status")
        if "error" in answer:
            raise SchedulerError(f"Ray: {answer['error']}")
        return answer["value"]

    def end(self) -> None:
        """Let the process leave the cluster, or end it; with it goes all that it has started there."""
        self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        processes.end({self._mark: self._process}, GRACE_S)

    def _last_words(self) -> str:
        lines = [line for line in logs.tail(str(self._log), 20).splitlines() if not line.startswith("supervise: ")]
        return f"{lines[-1]} ({self._log})" if lines else f"see {self._log}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                if not line.startswith(b"{"):
                    continue  # what a library prints while it is imported
                answer = json.loads(line)
                if (box := self._boxes.get(answer["number"])) is not None:
                    box.put(answer)
        self._ended.set()
        for box in list(self._boxes.values()):
            box.put(None)
