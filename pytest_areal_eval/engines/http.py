"""HTTP to an inference server: one JSON request, and which failures may pass.

Invariant: a caller gets a decoded body, a :class:`TransientError` or a :class:`~pytest_areal_eval.errors.RequestError`,
never an exception of the HTTP library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_areal_eval.api import ModelRequest
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, TransientError, describe
from pytest_areal_eval.errors import PromptTooLong, RequestError

if TYPE_CHECKING:
    import aiohttp

PASSING_STATUSES = frozenset({408, 425, 429})
"""Below 500, the statuses that may pass: a timeout, too early, too many requests."""


async def post_json(http: aiohttp.ClientSession, endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> Any:
    """POST ``body`` as JSON and decode the answer; one attempt.

    Raises:
        TransientError: no connection, a broken one, 408, 425, 429, 5xx, or a body that is no JSON.
        RequestError: any other status of 400 and above, with the server's own message.
    """
    return await _request(http, endpoint, "POST", path, body)


async def get_json(http: aiohttp.ClientSession, endpoint: Endpoint, path: str) -> Any:
    """GET and decode the answer; raises as :func:`post_json`."""
    return await _request(http, endpoint, "GET", path, None)


async def get_text(http: aiohttp.ClientSession, endpoint: Endpoint, path: str) -> str:
    """GET and return the body as text; raises as :func:`post_json`."""
    raw, _ = await _bytes(http, endpoint, "GET", path, None)
    return raw.decode(errors="replace")


def openai_path(endpoint: Endpoint, path: str) -> str:
    """``/v1/models`` for a server's root; for an address with a path of its own, that is all that goes before."""
    return path if urlsplit(endpoint.base_url).path else f"/v1{path}"


async def _request(
    http: aiohttp.ClientSession, endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None
) -> Any:
    raw, status = await _bytes(http, endpoint, method, path, body)
    try:
        return json.loads(raw)
    except ValueError as e:
        text = raw.decode(errors="replace")
        message = f"{endpoint.name} {method} {path}: the body is no JSON: {describe(text)!r}"
        raise TransientError(message, status=status) from e


async def _bytes(
    http: aiohttp.ClientSession, endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None
) -> tuple[bytes, int]:
    import aiohttp

    where = f"{endpoint.name} {method} {path}"
    headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    try:
        async with http.request(method, endpoint.base_url + path, json=body, headers=headers) as response:
            raw = await response.read()
            status, retry_after = response.status, response.headers.get("Retry-After", "")
    except (aiohttp.ClientError, OSError) as e:
        lost = not isinstance(e, aiohttp.ServerTimeoutError)
        raise TransientError(f"{where}: {_said(e)}", lost=lost) from e
    if status >= 400:
        raise _error(f"{where}: HTTP {status}: {server_message(raw)}", status, retry_after)
    return raw, status


def _said(error: Exception) -> str:
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return f"cannot connect to {error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    return f"{type(error).__name__}: {error}"


def _error(message: str, status: int, retry_after: str) -> Exception:
    if status >= 500 or status in PASSING_STATUSES:
        wait_s = float(retry_after) if retry_after.replace(".", "", 1).isdecimal() else None
        return TransientError(message, retry_after_s=wait_s, status=status)
    return RequestError(message, status=status)


def server_message(raw: bytes) -> str:
    """What an error body says, in any of the shapes that vLLM, SGLang and OpenAI use."""
    text = raw.decode(errors="replace").strip()
    try:
        body = json.loads(text)
    except ValueError:
        return describe(text) or "(empty body)"
    while isinstance(body, dict):
        inner = next((body[key] for key in ("error", "message", "detail") if body.get(key)), None)
        if inner is None:
            break
        body = inner
    return describe(body if isinstance(body, str) else json.dumps(body), limit=500)


def token_budget(request: ModelRequest, info: EngineInfo) -> int:
    """Tokens that the request may generate: its own limits and what the context leaves.

    Raises:
        PromptTooLong: the prompt leaves no room for a single token.
    """
    gconfig, prompt = request.gconfig, len(request.input_ids)
    limits = {"gconfig.max_tokens": gconfig.max_tokens}
    if info.context_length is not None:
        limits["the model's context length"] = info.context_length
    name, limit = min(limits.items(), key=lambda pair: pair[1])
    if prompt >= limit:
        raise PromptTooLong(
            f"the prompt has {prompt} tokens, and {name} is {limit}: no room is left for an answer",
            "Shorten the prompt, or raise the limit if the model allows it.",
        )
    return min(gconfig.max_new_tokens, limit - prompt)
