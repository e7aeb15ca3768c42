"""Just enough HTTP/1.1 for the stand-in server: keep-alive, Content-Length, no framework, about 50 µs a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass(slots=True)
class Request:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: Connection

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body or b"null")


@dataclass(slots=True)
class Reply:
    """What to answer."""

    body: Any = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes on the wire; a body that is no bytes is sent as JSON."""
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        reason = REASONS.get(self.status, "Status")
        head = f"HTTP/1.1 {self.status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}{more}\r\n".encode() + body


class Connection(asyncio.Protocol):
    """One client.  ``handle`` gets each request and answers through :meth:`send`, at once or later."""

    def __init__(self, handle: Callable[[Request], None], on_close: Callable[[Connection], None]) -> None:
        self._handle = handle
        self._on_close = on_close
        self._buffer = b""
        self._head: tuple[str, str, dict[str, str]] | None = None
        self.transport: asyncio.Transport | None = None
        self.pending: set[Any] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """It went; whatever is pending for it is aborted."""
        self._on_close(self)

    def data_received(self, data: bytes) -> None:
        """Handle every request that is complete."""
        self._buffer += data
        while (request := self._next()) is not None:
            self._handle(request)

    def send(self, reply: Reply) -> None:
        """Answer, unless the client is gone."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(reply.encode())

    def drop(self) -> None:
        """Close without an answer."""
        if self.transport is not None:
            self.transport.abort()

    def _next(self) -> Request | None:
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return None
            first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
            method, path, _ = first.split(" ", 2)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            self._head, self._buffer = (method, path, headers), self._buffer[end + 4 :]
        method, path, headers = self._head
        length = int(headers.get("content-length", 0))
        if len(self._buffer) < length:
            return None
        body, self._buffer, self._head = self._buffer[:length], self._buffer[length:], None
        return Request(method, path, headers, body, self)
