"""Engines for tests: one for the stand-in server, one that answers in this process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, Launch, TransientError
from pytest_areal_eval.engines.http import get_json, post_json

if TYPE_CHECKING:
    import aiohttp

SERVER = str(Path(__file__).with_name("server.py"))


class StandinEngine:
    """Speaks to the stand-in server.

    Args:
        replicas: servers to start.
        arguments: further arguments of the server's command, for all replicas or, by index, for one.
    """

    name = "stand-in"

    def __init__(
        self, replicas: int = 1, arguments: Sequence[str] = (), only: dict[int, Sequence[str]] | None = None
    ) -> None:
        self.replicas = replicas
        self.model = "stand-in"
        self.info = EngineInfo()
        self._arguments = tuple(arguments)
        self._only = only or {}

    def launch(self, name: str, token: str) -> Launch | None:
        """The server's command."""
        own = self._only.get(int(name.rsplit("/", 1)[1]), ())
        argv = (
            sys.executable,
            SERVER,
            "--host",
            "{host}",
            "--port",
            "{port}",
            "--nonce",
            "{nonce}",
            "--model",
            self.model,
        )
        return Launch(argv + self._arguments + tuple(own), env={"AREAL_EVAL_TOKEN": token})

    async def discover(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> EngineInfo:
        """Read ``/model_info``."""
        body = await get_json(http, endpoint, "/model_info")
        return EngineInfo(body["context_length"], body["max_batch"], body["served_model_name"])

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """``/generate`` for ids, chat for messages."""
        assert endpoint is not None
        limit = request.gconfig.max_new_tokens
        if request.messages is not None:
            chat = {"request_id": request.rid, "messages": request.messages, "max_tokens": limit}
            body = await post_json(http, endpoint, "/v1/chat/completions", chat)
            choice, usage = body["choices"][0], body["usage"]
            return ModelResponse(
                output_tokens=choice["token_ids"],
                text=choice["message"]["content"] or "",
                stop_reason=choice["finish_reason"],
                input_count=usage["prompt_tokens"],
            )
        sampling = {"max_new_tokens": limit, "sampling_seed": request.gconfig.seed}
        ids = {"rid": request.rid, "input_ids": request.input_ids, "sampling_params": sampling}
        body = await post_json(http, endpoint, "/generate", ids)
        try:
            meta = body["meta_info"]
            return ModelResponse(
                input_tokens=request.input_ids,
                output_tokens=body["output_ids"],
                text=body["text"] or "",
                stop_reason=meta["finish_reason"]["type"],
            )
        except (KeyError, TypeError) as error:
            raise TransientError(f"unexpected body: {json.dumps(body)[:200]}") from error

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """By its rid."""
        assert endpoint is not None
        await post_json(http, endpoint, "/abort_request", {"rid": request.rid})

    async def reload(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        """As SGLang."""
        await post_json(http, endpoint, "/update_weights_from_disk", {"model_path": self.model})


class LocalEngine:
    """Answers in this process, so that a test sees every request.

    Args:
        answer: ``async (request) -> text or response``; None: the text "42" at once.
        concurrency: recommended episodes in flight.
    """

    name = "local"
    replicas = 1

    def __init__(
        self,
        answer: Callable[[ModelRequest], Awaitable[Any]] | None = None,
        concurrency: int = 64,
        context_length: int | None = None,
    ) -> None:
        self.info = EngineInfo(context_length=context_length, concurrency=concurrency)
        self._answer = answer
        self.requests: list[ModelRequest] = []
        self.aborted: list[str] = []
        self.in_flight = 0
        self.peak = 0

    def launch(self, name: str, token: str) -> Launch | None:
        """Nothing to start."""
        return None

    async def discover(self, endpoint: Endpoint, http: Any) -> EngineInfo:
        """As given."""
        return self.info

    async def generate(self, request: ModelRequest, endpoint: Endpoint | None, http: Any) -> ModelResponse:
        """What ``answer`` says."""
        self.requests.append(request)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(0)
            found = "42" if self._answer is None else await self._answer(request)
        finally:
            self.in_flight -= 1
        return found if isinstance(found, ModelResponse) else ModelResponse(text=found, output_count=len(found))

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: Any) -> None:
        """Remember it."""
        self.aborted.append(request.rid)
