"""The HTTP client that agents are handed: httpx's interface on aiohttp's connections.

httpx's own pool looks at every connection for every request: 6 to 10 ms of CPU each at 64 connections.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

TIMEOUT_S = 3600.0
"""As AReaL's; the episode's own limit is shorter."""


class HttpClients:
    """Clients that share one connection pool.  All of it belongs to one event loop."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._httpx: Any = None
        self._shared = AsyncExitStack()
        self._made: dict[str, Any] = {}

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        """A client of one agent's own, so that an agent that closes it closes nobody else's.

        None where no ``httpx-aiohttp`` is installed (the extra ``agents``).
        """
        if self._transport is None and not self._open():
            yield None
            return
        transport = _Lent(self._transport)
        async with self._httpx.AsyncClient(transport=transport, timeout=TIMEOUT_S, trust_env=False) as made:
            yield made

    async def shared(self) -> Any:
        """One client for whoever asks, open until :meth:`close`; None as in :meth:`client`."""
        if "client" not in self._made:
            self._made["client"] = await self._shared.enter_async_context(self.client())
        return self._made["client"]

    async def session(self) -> Any:
        """One ``aiohttp.ClientSession`` for whoever asks, open until :meth:`close`."""
        if "session" not in self._made:
            import aiohttp

            made = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S))
            self._made["session"] = await self._shared.enter_async_context(made)
        return self._made["session"]

    async def close(self) -> None:
        """Close the connections."""
        await self._shared.aclose()
        self._made.clear()
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    def _open(self) -> bool:
        name = _library()
        if name is None:
            return False
        import aiohttp

        self._httpx = importlib.import_module(name)
        package = "httpx_aiohttp.httpx2" if name == "httpx2" else "httpx_aiohttp"
        pool = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())
        self._transport = importlib.import_module(package).AiohttpTransport(client=pool)
        return True


class _Lent:
    """A transport that outlives the clients that it is lent to."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    async def handle_async_request(self, request: Any) -> Any:
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Nothing: others use it too."""

    async def __aenter__(self) -> _Lent:
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Nothing, likewise."""


def _library() -> str | None:
    """Which of httpx and httpx2 the installed SDKs are built on; each refuses the other's client."""
    if importlib.util.find_spec("httpx_aiohttp") is None:
        return None
    needs = [need for sdk in ("openai", "anthropic") for need in _requirements(sdk)]
    return "httpx2" if any(need.startswith("httpx2") for need in needs) else "httpx"


def _requirements(package: str) -> list[str]:
    try:
        return importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
