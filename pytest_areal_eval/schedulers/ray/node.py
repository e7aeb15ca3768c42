"""What runs on a node of a Ray cluster: an actor that owns one server process, under ``supervise.py``.

Shipped by value and made of the standard library alone, so that this package need not be on the nodes.  Nothing is
left when the actor ends, however it does: neither processes nor files; and the server ends when nobody has asked for it
for a while, since the network to who controls it may be lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from signal import SIGKILL, SIGTERM
from typing import Any

from pytest_areal_eval.schedulers.agent import NOT_THE_SERVERS, fill, free_ports, oom_kills
from pytest_areal_eval.schedulers.supervise import descendants, send

GRACE_S = 10.0
WATCH_S = 1.0
CHUNK_BYTES = 1 << 20

NOT_THE_SERVERS_EITHER = (*NOT_THE_SERVERS, "RAY_", "PYTHONBREAKPOINT")
VISIBLE = {"GPU": "CUDA_VISIBLE_DEVICES", "NPU": "ASCEND_RT_VISIBLE_DEVICES"}
"""The variable that says which devices of a kind a process may use, by the name that Ray gives to the kind."""


class Node:
    """One node's part of an instance."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the actor
        self._started = time.monotonic()
        self._watched = self._started
        self._oom_kills = oom_kills()

    def place(self, device: str) -> dict[str, Any]:
        """This node's address, two free ports, and the devices of kind ``device`` that Ray gives to this actor."""
        import ray

        host = ray.util.get_node_ip_address()
        port, master_port = free_ports(host, 2)
        context = ray.get_runtime_context()
        devices = [str(token) for token in context.get_accelerator_ids().get(device, [])]
        return {
            "host": host,
            "port": port,
            "master_port": master_port,
            "node": context.get_node_id(),
            "devices": devices,
        }

    def launch(self, order: dict[str, Any]) -> None:
        """Start the server.

        Args:
            order: ``argv``, ``env`` and the ``values`` of their placeholders; ``devices`` by kind; ``python``, the
                controlling process's interpreter, for which this node's is used; ``supervise``, the supervisor's text;
                ``lease_s``, how long the server lives on when :meth:`watch` is not called.
        """
        values = order["values"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(NOT_THE_SERVERS_EITHER)}
        environment |= {k: fill(v, values) for k, v in order["env"].items()}
        environment |= {VISIBLE[kind]: ",".join(tokens) for kind, tokens in order["devices"].items()}
        program, *arguments = (fill(word, values) for word in order["argv"])
        program = sys.executable if program == order["python"] else program
        supervisor = [sys.executable, "-I", "-S", "-c", order["supervise"], str(os.getpid()), str(GRACE_S), "--"]
        self._started = self._watched = time.monotonic()
        self._process = subprocess.Popen(
            [*supervisor, program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        threading.Thread(target=self._keep_lease, args=(self._process, order["lease_s"]), daemon=True).start()

    def watch(self, offset: int) -> tuple[bytes, dict[str, Any] | None]:
        """Wait for the server's end, a second at most; returns its log from ``offset`` on, and how it has ended.

        The log may come in several parts: it is whole when a part after the end is empty.
        """
        assert self._process is not None
        self._watched = time.monotonic()
        end: dict[str, Any] | None = None
        try:
            code = self._process.wait(WATCH_S)
            end = {"code": code, "seconds": time.monotonic() - self._started, "oom": oom_kills() > self._oom_kills}
        except subprocess.TimeoutExpired:
            self._oom_kills = oom_kills()
        return os.pread(self._log.fileno(), CHUNK_BYTES, offset), end

    def stop(self, grace_s: float) -> None:
        """End the server and all that it started: SIGTERM, and SIGKILL after the grace."""
        process, deadline = self._process, time.monotonic() + grace_s
        if process is None:
            return
        send(process.pid, SIGTERM)
        while process.poll() is None:
            if time.monotonic() >= deadline:
                for pid in descendants(process.pid):
                    send(pid, SIGKILL)
            time.sleep(0.02)

    def _keep_lease(self, process: subprocess.Popen[bytes], lease_s: float) -> None:
        while process.poll() is None:
            if time.monotonic() - self._watched > lease_s:
                self.stop(GRACE_S)
            time.sleep(min(WATCH_S, lease_s / 10))
