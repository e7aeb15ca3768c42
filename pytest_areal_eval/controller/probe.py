"""What is asked of a server beside generating: its health, that it is ours, what it can do, to load a checkpoint."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pytest_areal_eval.engines.base import Endpoint, Engine, Reloading, TransientError, describe
from pytest_areal_eval.errors import RequestError

if TYPE_CHECKING:
    import aiohttp

PROBE_LIMIT_S = 2.0
DISCOVER_LIMIT_S = 10.0


class Health(Enum):
    """What a health check found."""

    OK = "ok"
    LOADING = "loading"
    SILENT = "silent"
    REFUSED = "refused"
    STRANGER = "stranger"
    FOREIGN = "foreign"
    REJECTED = "rejected"


@dataclass(frozen=True)
class Reading:
    """A health check's result, with a line for a person."""

    health: Health
    text: str = ""


async def probe(http: aiohttp.ClientSession, url: str, nonce: str) -> Reading:
    """One health check, within two seconds.

    Args:
        http: the session.
        url: the server's health path.
        nonce: what the JSON body must hold under ``nonce``, or "": any 200 will do.  No secret is sent: whoever
            listens there may be a stranger.
    """
    import aiohttp

    try:
        async with asyncio.timeout(PROBE_LIMIT_S), http.get(url, allow_redirects=False) as reply:
            status, body = reply.status, await reply.read()
    except TimeoutError:
        return Reading(Health.SILENT, f"{url} gave no answer within {PROBE_LIMIT_S:g} s")
    except aiohttp.ClientConnectorError as error:
        return Reading(Health.REFUSED, f"{url}: {error.os_error.strerror or error}")
    except (aiohttp.ClientError, OSError) as error:
        return Reading(Health.SILENT, f"{url}: {error!r}")
    if status != 200:
        return Reading(Health.LOADING, f"{url} answers {status}")
    if nonce and _nonce(body) != nonce:
        return Reading(Health.STRANGER, f"{url} is answered by another program: {describe(repr(body), 80)}")
    return Reading(Health.OK)


async def discover(
    engine: Engine, endpoint: Endpoint, http: aiohttp.ClientSession, limit_s: float = DISCOVER_LIMIT_S
) -> Reading:
    """Ask a server what it can do and keep it in ``engine.info``; for a given address this is its health check."""
    try:
        async with asyncio.timeout(limit_s):
            engine.info = await engine.discover(endpoint, http)
    except TransientError as error:
        if error.foreign:
            said = f"{endpoint.base_url} does not answer as a server of models does: {error}"
            return Reading(Health.FOREIGN, f"{said}\nSee what is there: curl -i {endpoint.base_url}")
        return Reading(Health.REFUSED if error.lost else Health.LOADING, str(error))
    except TimeoutError:
        return Reading(Health.SILENT, f"{endpoint.base_url} gave no answer within {limit_s:g} s")
    except RequestError as error:
        return Reading(Health.REJECTED, str(error))
    return Reading(Health.OK)


async def reload(engine: Reloading, endpoint: Endpoint, http: aiohttp.ClientSession, limit_s: float) -> str:
    """Let a server load the engine's checkpoint; returns why it did not, or ""."""
    try:
        async with asyncio.timeout(limit_s):
            await engine.reload(endpoint, http)
    except (TransientError, RequestError) as error:
        return str(error.args[0])
    except TimeoutError:
        return f"no answer within {limit_s:g} s"
    return ""


def _nonce(body: bytes) -> object:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found.get("nonce") if isinstance(found, dict) else None
