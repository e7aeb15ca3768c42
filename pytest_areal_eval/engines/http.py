"""HTTP to an inference server: one JSON request, and which failures may pass.

Invariant: a caller gets a decoded body, a :class:`TransientError` or a :class:`~pytest_areal_eval.errors.RequestError`,
never an exception of the HTTP library.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_areal_eval.api import ModelRequest
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, TransientError, describe
from pytest_areal_eval.errors import PromptTooLong, RequestError

if TYPE_CHECKING:
    import aiohttp

PASSING_STATUSES = frozenset({408, 425, 429})
"""Below 500, the statuses that may pass: a timeout, too early, too many requests."""
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a decoded body of another form than expected raises."""
BODY_LIMIT = 64 * 2**20
"""Bytes, unpacked: a million tokens with their log-probabilities.  A packed body may unpack to a thousandfold."""
LONGEST_RETRY_AFTER_S = 60.0
"""A server that asks for more is asked again by then: an hour is no part of an episode."""


async def post_json(http: aiohttp.ClientSession, endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> Any:
    """POST ``body`` as JSON and decode the answer; one attempt.

    Raises:
        TransientError: no connection, a broken one, 408, 425, 429, 5xx, or a body that is no JSON or too long.
        RequestError: any other status of 300 and above, with the server's own message, or a certificate that is not
            trusted.
    """
    return await _request(http, endpoint, "POST", path, body)


async def post_text(http: aiohttp.ClientSession, endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> str:
    """POST ``body`` as JSON and return the answer as text; raises as :func:`post_json`."""
    raw, _ = await _bytes(http, endpoint, "POST", path, body)
    return raw.decode(errors="replace")


async def get_json(http: aiohttp.ClientSession, endpoint: Endpoint, path: str) -> Any:
    """GET and decode the answer; raises as :func:`post_json`."""
    return await _request(http, endpoint, "GET", path, None)


async def get_text(http: aiohttp.ClientSession, endpoint: Endpoint, path: str) -> str:
    """GET and return the body as text; raises as :func:`post_json`."""
    raw, _ = await _bytes(http, endpoint, "GET", path, None)
    return raw.decode(errors="replace")


def unexpected(where: str, body: Any, error: Exception) -> TransientError:
    """For a body whose reading raised ``error``, one of :data:`MALFORMED`."""
    message = f"{where}: unexpected body ({type(error).__name__}: {error}): {describe(body)}"
    return TransientError(message, foreign=True)


def openai_path(endpoint: Endpoint, path: str) -> str:
    """``/v1/models`` for a server's root; for an address with a path of its own, that is all that goes before."""
    return path if urlsplit(endpoint.base_url).path else f"/v1{path}"


async def _request(
    http: aiohttp.ClientSession, endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None
) -> Any:
    raw, status = await _bytes(http, endpoint, method, path, body)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as e:
        text = raw.decode(errors="replace")
        message = f"{endpoint.name} {method} {path}: the body is no JSON: {describe(text)!r}"
        raise TransientError(message, status=status, foreign=True) from e


async def _bytes(
    http: aiohttp.ClientSession, endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None
) -> tuple[bytes, int]:
    import aiohttp

    where = f"{endpoint.name} {method} {path}"
    headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    try:
        url = endpoint.base_url + path
        async with http.request(method, url, json=body, headers=headers, allow_redirects=False) as response:
            raw = await _read(response, where)
            status, told = response.status, response.headers
    except aiohttp.ClientConnectorCertificateError as e:
        raise RequestError(
            f"{where}: its certificate is not trusted: {e.certificate_error}",
            hint="SSL_CERT_FILE=PATH in the environment names a file of those to trust.",
        ) from e
    except (aiohttp.ClientResponseError, aiohttp.ClientConnectorSSLError) as e:
        raise TransientError(f"{where}: {_no_http(e)}", lost=True, foreign=True) from e
    except (aiohttp.ClientError, OSError) as e:
        lost = not isinstance(e, aiohttp.ServerTimeoutError)
        raise TransientError(f"{where}: {_said(e)}", lost=lost) from e
    if status >= 400:
        raise _error(f"{where}: HTTP {status}: {server_message(raw)}", status, told.get("Retry-After", ""))
    if status >= 300:  # followed, a POST would become a GET, and the key would go to another address
        message = f"{where}: HTTP {status}: it redirects to {describe(told.get('Location', 'nowhere'))}"
        raise RequestError(message, status=status, hint="Give the address that answers by itself.")
    return raw, status


async def _read(response: aiohttp.ClientResponse, where: str) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > BODY_LIMIT:
            raise TransientError(f"{where}: the body is longer than {BODY_LIMIT} bytes", status=response.status)
        parts.append(part)
    return b"".join(parts)


def _said(error: Exception) -> str:
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return f"cannot connect to {error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    return f"{type(error).__name__}: {error}"


def _no_http(error: Exception) -> str:
    """In a line; the library draws a picture of what it could not read."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"what answers there speaks no TLS ({error.os_error}); one without it takes http://"
    said = " ".join(str(getattr(error, "message", error)).replace("^", "").replace("\\n", " ").split())
    return f"what answers there speaks no HTTP: {describe(said)}"


def _error(message: str, status: int, retry_after: str) -> Exception:
    if status >= 500 or status in PASSING_STATUSES:
        return TransientError(message, retry_after_s=_wait_s(retry_after), status=status)
    return RequestError(message, status=status)


def _wait_s(retry_after: str) -> float | None:
    """What a ``Retry-After`` asks for, a number of seconds or a date (RFC 9110, 10.2.3); None if it is neither."""
    try:
        asked_s = float(retry_after)
    except ValueError:
        date = parsedate_tz(retry_after)
        asked_s = mktime_tz(date) - time.time() if date is not None else math.nan
    return min(asked_s, LONGEST_RETRY_AFTER_S) if asked_s >= 0 else None


def server_message(raw: bytes) -> str:
    """What an error body says, in any of the shapes that vLLM, SGLang and OpenAI use."""
    text = raw.decode(errors="replace").strip()
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
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
