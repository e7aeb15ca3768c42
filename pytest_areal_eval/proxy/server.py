"""The proxy's HTTP: routes, keys, errors and streams.

Invariant: every answer is one that the client's SDK understands, errors too; no error asks it to retry, since the
controller has done so already.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from pytest_areal_eval.errors import ArealEvalError, PromptTooLong, RequestError
from pytest_areal_eval.proxy import chat, messages, responses
from pytest_areal_eval.proxy.ask import Answer, Ask, Body, RefusedError
from pytest_areal_eval.proxy.sessions import ProxySession

MOST_BYTES = 32 * 2**20
"""A request's body; the longest context of today is a tenth of it."""

_JSON, _EVENTS = "application/json", "text/event-stream"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Api:
    """One way to ask.

    Attributes:
        prefix: what its answers' ids begin with.
        read: from the request's body.
        write: to the answer's body.
        stream: to the answer as server-sent events.
        error: to the body of an error.
    """

    prefix: str
    read: Callable[[Body], Ask]
    write: Callable[[Answer, Body], dict[str, Any]]
    stream: Callable[[Answer, Body], Iterator[chat.Event]]
    error: Callable[[RefusedError], dict[str, Any]]


def openai_error(refused: RefusedError) -> dict[str, Any]:
    """OpenAI's form."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {"error": {"message": str(refused), "type": kind, "param": refused.param, "code": refused.code}}


_OPENAI = Api("", lambda body: Ask(None), lambda answer, body: {}, lambda answer, body: iter(()), openai_error)
_APIS: Mapping[str, Api] = {
    "/chat/completions": Api("chatcmpl-", chat.read_chat, chat.write_chat, chat.stream_chat, openai_error),
    "/completions": Api("cmpl-", chat.read_completion, chat.write_completion, chat.stream_completion, openai_error),
    "/responses": Api("resp_", responses.read, responses.write, responses.stream, openai_error),
    "/messages": Api("msg_", messages.read, messages.write, messages.stream, messages.error),
}


class Server:
    """Listens on loopback.

    Args:
        find: the running episode that a key belongs to.

    Attributes:
        url: its root, without ``/v1``.
    """

    def __init__(self, find: Callable[[str], ProxySession | None]) -> None:
        self.url = ""
        self._find = find
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Bind a free port."""
        app = web.Application(client_max_size=MOST_BYTES)
        for root in ("", "/v1"):
            for path, api in _APIS.items():
                app.router.add_post(root + path, self._handler(api))
            app.router.add_get(f"{root}/models", self._models)
        app.router.add_route("*", "/{rest:.*}", self._unknown)
        # A client that hangs up has its handler cancelled, which frees its place in the engine.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close the socket and the connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _handler(self, api: Api) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                session = self._session(request)
                body = await _body(request)
                answer = await session.answer(_read(api, body), api.prefix)
                if not body.get("stream"):
                    return web.json_response(api.write(answer, body))
                events = list(api.stream(answer, body))  # whole before the status line is sent
            except (RefusedError, ArealEvalError) as error:
                return _refuse(api, _as_refused(error))
            except Exception as error:
                _log.exception("%s", request.path)
                return _refuse(api, RefusedError(f"{type(error).__name__}: {error}", status=500))
            return await _stream(request, events)

        return handle

    async def _models(self, request: web.Request) -> web.StreamResponse:
        try:
            session = self._session(request)
        except RefusedError as error:
            return _refuse(_OPENAI, error)
        model = {"id": session.model, "object": "model", "created": 0, "owned_by": "areal-eval"}
        return web.json_response({"object": "list", "data": [model]})

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        known = ", ".join([*_APIS, "/models"])
        said = f"{request.method} {request.path}: there are {known}, with or without /v1"
        return _refuse(_OPENAI, RefusedError(said, status=404))

    def _session(self, request: web.Request) -> ProxySession:
        key = request.headers.get("x-api-key") or request.headers.get("Authorization", "").removeprefix("Bearer ")
        session = self._find(key.strip())
        if session is None:
            said = "this key belongs to no episode that runs now; use the api_key that run() was called with"
            raise RefusedError(said, status=401, code="invalid_api_key")
        return session


async def answer_here(session: ProxySession, path: str, body: Body) -> tuple[int, str, str]:
    """What a request would be answered, for a client in this process: status, content type and body.

    Args:
        session: the episode's.
        path: ``/chat/completions``, with or without ``/v1``.
        body: the request's.
    """
    path = path.removeprefix("/v1")
    if path not in _APIS:
        return 404, _JSON, json.dumps(openai_error(RefusedError(f"{path}: there are {', '.join(_APIS)}", status=404)))
    api = _APIS[path]
    try:
        answer = await session.answer(_read(api, body), api.prefix)
    except (RefusedError, ArealEvalError) as error:
        refused = _as_refused(error)
        return refused.status, _JSON, json.dumps(api.error(refused))
    if body.get("stream"):
        return 200, _EVENTS, "".join(_event(name, data) for name, data in api.stream(answer, body))
    return 200, _JSON, json.dumps(api.write(answer, body))


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json(loads=json.loads)
    except web.HTTPRequestEntityTooLarge:
        raise RefusedError(f"the body is larger than {MOST_BYTES >> 20} MiB", status=413) from None
    except ValueError as error:
        raise RefusedError(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError("the body is no JSON object")
    return body


def _read(api: Api, body: Body) -> Ask:
    try:
        return api.read(body)
    except (TypeError, AttributeError, LookupError, ValueError) as error:  # something deep inside of another form
        raise RefusedError(f"the request has another form than this API's: {type(error).__name__}: {error}") from error


def _as_refused(error: RefusedError | ArealEvalError) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, PromptTooLong):
        return RefusedError(str(error), code="context_length_exceeded", param="messages")
    status = error.status if isinstance(error, RequestError) and error.status else 502
    return RefusedError(str(error), status=status if 400 <= status < 600 else 502)


def _refuse(api: Api, refused: RefusedError) -> web.Response:
    return web.json_response(api.error(refused), status=refused.status, headers={"x-should-retry": "false"})


async def _stream(request: web.Request, events: Iterable[chat.Event]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": _EVENTS, "Cache-Control": "no-cache"})
    await response.prepare(request)
    for name, data in events:
        await response.write(_event(name, data).encode())
    await response.write_eof()
    return response


def _event(name: str | None, data: Any) -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
