"""Start the embedded server as a process of its own and talk to it, without the code under test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKPOINT = Path(__file__).parents[2] / "models/tiny-math"
TOKEN = "secret-of-the-tests"


@dataclass(frozen=True)
class RunningServer:
    """Where the server listens; ``post`` and ``get`` return the status and the decoded body."""

    port: int
    process: subprocess.Popen[str]
    token: str = TOKEN

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: Any, token: str | None = None) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._ask(urllib.request.Request(self.url + path, data), token)

    def get(self, path: str, token: str | None = None) -> tuple[int, Any]:
        return self._ask(urllib.request.Request(self.url + path), token)

    def _ask(self, request: urllib.request.Request, token: str | None) -> tuple[int, Any]:
        request.add_header("Authorization", f"Bearer {self.token if token is None else token}")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                raw, status = response.read(), response.status
        except urllib.error.HTTPError as e:
            with e:
                raw, status = e.read(), e.code
        return status, json.loads(raw) if raw else None

    def generate(self, prompt: list[int], **sampling: Any) -> Any:
        """``/generate``, greedy unless told otherwise; the decoded answer."""
        body = {"input_ids": prompt, "sampling_params": {"temperature": 0.0, "max_new_tokens": 128} | sampling}
        status, answer = self.post("/generate", body)
        assert status == 200, answer
        return answer


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def start_server(*arguments: str, model: Path | str = CHECKPOINT) -> RunningServer:
    """A server process that may not be ready yet."""
    port = free_port()
    argv = [sys.executable, "-m", "pytest_areal_eval.engines.hf_server", "--model", str(model)]
    argv += ["--port", str(port), "--nonce", "n-123", *arguments]
    environment = os.environ | {"AREAL_EVAL_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)
    return RunningServer(port, process)


def wait_until_ready(server: RunningServer, timeout_s: float = 120.0) -> list[int]:
    """The statuses of /health until it answers 200; 0 stands for no answer."""
    statuses = [0]
    deadline = time.monotonic() + timeout_s
    while statuses[-1] != 200:
        assert server.process.poll() is None, server.process.stderr and server.process.stderr.read()
        assert time.monotonic() < deadline, f"not ready after {timeout_s} s: {statuses[-1]}"
        time.sleep(0.05)
        try:
            statuses.append(server.get("/health", token="")[0])
        except (urllib.error.URLError, ConnectionError):
            statuses.append(0)
    return statuses


def end(server: RunningServer) -> str:
    """Stop a server; what it wrote to stderr."""
    server.process.terminate()
    _, errors = server.process.communicate(timeout=20)
    return errors
