"""A headless Chromium, driven by chromedriver over WebDriver's HTTP; neither is needed to import this."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1440,1300"
)
START_LIMIT_S = 30.0
ANSWER_LIMIT_S = 90.0


def missing() -> str:
    """What is not installed; empty where all is."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not found: apt-get install chromium chromium-driver" if absent else ""


class Browser:
    """One browser with one page; a context manager."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._profile = tempfile.TemporaryDirectory()
        self._url = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={port}", "--silent"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._await_driver()
            flags = [*FLAGS.split(), f"--user-data-dir={self._profile.name}"]
            options = {"goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
            answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        except BaseException:
            self._end()
            raise
        self._session = f"/session/{answer['sessionId']}"

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a report anew and wait until it can be used."""
        self._send("POST", f"{self._session}/url", {"url": "about:blank"})
        self._send("POST", f"{self._session}/url", {"url": f"{path.resolve().as_uri()}{fragment}"})
        self.wait("document.body.dataset.ready")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self._send("POST", f"{self._session}/execute/sync", {"script": f"return {script}", "args": []})

    def do(self, script: str) -> None:
        """Run JavaScript statements."""
        self._send("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def wait(self, condition: str, limit_s: float = ANSWER_LIMIT_S) -> Any:
        """Wait until an expression is true and return its value."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            value = self.run(condition)
            if value:
                return value
            time.sleep(0.05)
        raise TimeoutError(f"not within {limit_s:g} s: {condition}")

    def click(self, selector: str) -> None:
        """Click the first element that matches."""
        found = self._send("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        self._send("POST", f"{self._session}/element/{next(iter(found.values()))}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into an element."""
        found = self._send("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        self._send("POST", f"{self._session}/element/{next(iter(found.values()))}/value", {"text": text})

    def console(self) -> list[str]:
        """What the page logged since the last call: errors, and whatever its policy refused."""
        return [entry["message"] for entry in self._send("POST", f"{self._session}/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        """Save what is seen as a PNG."""
        import base64

        path.write_bytes(base64.b64decode(self._send("GET", f"{self._session}/screenshot")))

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._send("DELETE", self._session)
        finally:
            self._end()

    def _await_driver(self) -> None:
        end = time.monotonic() + START_LIMIT_S
        while True:
            try:
                if self._send("GET", "/status")["ready"]:
                    return
            except OSError:
                if time.monotonic() > end or self._driver.poll() is not None:
                    raise
            time.sleep(0.1)

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {json.loads(error.read())['value']['message']}") from None

    def _end(self) -> None:
        self._driver.terminate()
        self._driver.wait(timeout=10)
        self._profile.cleanup()
