"""Servers that run already: vLLM, SGLang, our own, or any OpenAI-compatible endpoint.

``--base-url=URL`` (repeatable: each is a replica).  A server that takes and gives token ids is spoken to as its own
engine does; any other one gets messages through ``/v1/chat/completions`` and tokenizes itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.allocation import Allocation
from pytest_areal_eval.api import GenerationHyperparameters, ModelRequest, ModelResponse
from pytest_areal_eval.engines.answers import parse_chat
from pytest_areal_eval.engines.base import Endpoint, Engine, EngineInfo, Launch
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.engines.http import MALFORMED, openai_path, post_json, token_budget
from pytest_areal_eval.engines.schemas import of_openai
from pytest_areal_eval.engines.served import choose_model, list_models, with_folder
from pytest_areal_eval.engines.server import ServerSpec
from pytest_areal_eval.engines.sglang import SGLangEngine
from pytest_areal_eval.engines.vllm import VLLMEngine
from pytest_areal_eval.engines.wire import exchange, leaves_no_room, limits_top_k, refuse_settings, wants_logprobs
from pytest_areal_eval.errors import RequestError

if TYPE_CHECKING:
    import aiohttp

OWNERS = {"vllm": "vllm", "sglang": "sglang", "pytest-areal-eval": "hf"}
"""``owned_by`` in ``/v1/models``, and the engine that speaks to it."""
INEXACT = "messages through /v1/chat/completions: the server tokenizes, so prompts are not known token by token"
UNRENDERED = "messages through /v1/chat/completions: --model=FOLDER, with a tokenizer in it, would send token ids"
NAME_KIND = "Leave it at its default, or name the server's kind: --backend=vllm or --backend=sglang."
HOSTED_CONCURRENCY = 32


class OpenAIEngine:
    """Attaches; nothing is started.

    Args:
        endpoints: the servers.
        model: its name there, or the local checkpoint that it serves; None takes the only one.
        kind: ``vllm``, ``sglang`` or ``hf`` where that is known; "" asks each server.
        messages: whether there is no tokenizer here, so that servers that take ids get messages, too; they tell.
    """

    name = "openai"

    def __init__(
        self, endpoints: Sequence[Endpoint], model: str | None, kind: str = "", *, messages: bool = False
    ) -> None:
        self.endpoints = tuple(endpoints)
        self.replicas = len(self.endpoints)
        self.model = model
        self.kind = kind
        self.messages = messages
        self._is_folder = model is not None and Path(model).is_dir()
        self.info = EngineInfo(concurrency=HOSTED_CONCURRENCY, model=model or "")
        self._spoken: dict[str, Engine] = {}

    def launch(self, name: str, token: str) -> Launch | None:
        """Nothing to start."""
        return None

    async def discover(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> EngineInfo:
        """Learn what the server is and which model it serves.

        Raises:
            RequestError: it refuses the key, does not serve the model, or is of another kind than the one before.
        """
        try:
            models = await list_models(endpoint, http)
        except RequestError as error:
            raise _refused(endpoint, error) if error.status in (401, 403) else error from error
        listed = await with_folder(models, endpoint, http) if self._is_folder and models else models
        served = choose_model(listed, self.model, endpoint.base_url)
        told = OWNERS.get(str(served.get("owned_by")), "")
        if self.kind and told not in ("", self.kind):
            hint = "Leave out --backend: the server says what it is."
            raise RequestError(f"{endpoint.base_url} is no {self.kind} server: it says that it is {told}", hint=hint)
        kind = self.kind or told or await self._probe(endpoint, http, served)
        engine = _engine(kind, str(served["id"]))
        info = await engine.discover(endpoint, http)
        for other in self._spoken.values():
            _check_alike(info, other.info, endpoint.base_url, any_name=self._is_folder)
        if self.messages and info.token_ids:
            info = replace(info, note=UNRENDERED)
        self.info = info
        self._spoken[endpoint.name] = engine
        return info

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """Generate once, as the server's own engine does; raises as that."""
        assert endpoint is not None
        return await self._spoken[endpoint.name].generate(request, endpoint, http)

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """Free the request's place."""
        assert endpoint is not None
        await self._spoken[endpoint.name].abort(request, endpoint, http)

    async def _probe(self, endpoint: Endpoint, http: aiohttp.ClientSession, served: Mapping[str, Any]) -> str:
        """Whether a server that does not say what it is takes and gives ids, as vLLM behind a gateway does."""
        if not self._is_folder or openai_path(endpoint, "") != "/v1":
            return "chat"
        body = {"model": served["id"], "prompt": [1], "max_tokens": 1, "return_token_ids": True}
        try:
            answer = await post_json(http, endpoint, "/v1/completions", body)
            return "vllm" if answer["choices"][0]["token_ids"] else "chat"
        except (RequestError, *MALFORMED):
            return "chat"


class HostedChat:
    """An endpoint of which only OpenAI's own fields are known; what it could not honour is refused by name.

    Args:
        model: the model's name there.
    """

    name = "openai"
    replicas = 1

    def __init__(self, model: str) -> None:
        self.info = EngineInfo(
            concurrency=HOSTED_CONCURRENCY, model=model, token_ids=False, note=INEXACT, schemas=True, openai_only=True
        )
        self._limit_key = "max_tokens"
        self._refused_limit = math.inf

    def launch(self, name: str, token: str) -> Launch | None:
        """Nothing to start."""
        return None

    async def discover(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> EngineInfo:
        """Nothing more to ask."""
        return self.info

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """Send messages.

        Raises:
            TransientError: it may succeed elsewhere or later.
            RequestError: it never will, or the endpoint could not honour a setting.
        """
        assert endpoint is not None
        return await self._ask(request, endpoint, http)

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """The connection is closed already; there is no more to do."""

    async def _ask(
        self, request: ModelRequest, endpoint: Endpoint, http: aiohttp.ClientSession, *, limited: bool = True
    ) -> ModelResponse:
        body, path = self._body(request), openai_path(endpoint, "/chat/completions")
        key, wanted = self._limit_key, token_budget(request, self.info)
        if limited and wanted < self._refused_limit:
            body[key] = wanted
        try:
            return await exchange(http, endpoint, path, request, body, parse_chat)
        except RequestError as error:
            if error.status != 400 or key not in body:
                raise
            if key == "max_tokens" and "max_completion_tokens" in str(error):
                self._limit_key = "max_completion_tokens"  # OpenAI's reasoning models know no other name for it
            elif leaves_no_room(error):
                limited = False
                if "context" not in str(error):  # else it follows from this prompt's length
                    self._refused_limit = min(self._refused_limit, wanted)
            else:
                raise
        return await self._ask(request, endpoint, http, limited=limited)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        refuse_settings(request, self.name)
        if request.messages is None:
            raise RequestError("this endpoint takes no token ids", hint="Send messages: ModelRequest(messages=[...]).")
        if request.image_data:
            raise RequestError("image_data beside messages", hint="Put the images into the messages, as data: URIs.")
        gconfig, options = request.gconfig, dict(request.template_kwargs)
        tools = options.pop("tools", None)
        refused = beyond_openai(gconfig, options)
        if refused:
            raise RequestError(f"OpenAI's chat API has no {', '.join(refused)}", hint=NAME_KIND)
        body = {
            "model": self.info.model,
            "messages": request.messages,
            "temperature": gconfig.effective_temperature,
            "top_p": gconfig.top_p,
            "frequency_penalty": gconfig.frequency_penalty,
            "stop": gconfig.stop or None,
            "seed": gconfig.seed,
            "tools": tools,
            "logprobs": wants_logprobs(request) or None,
            **of_openai(request),
        }
        return {key: value for key, value in body.items() if value is not None}


def beyond_openai(gconfig: GenerationHyperparameters, template_kwargs: Mapping[str, Any]) -> list[str]:
    """The settings among these that OpenAI's chat API does not have; the chat template's are called by their names."""
    unknown = {
        "top_k": limits_top_k(gconfig),
        "min_new_tokens": gconfig.min_new_tokens > 0,
        "ignore_eos": gconfig.ignore_eos,
        "stop_token_ids": bool(gconfig.stop_token_ids),
        "skip_special_tokens": not gconfig.skip_special_tokens,
    }
    return [name for name, is_set in unknown.items() if is_set] + [name for name in template_kwargs if name != "tools"]


def _check_alike(info: EngineInfo, other: EngineInfo, address: str, *, any_name: bool) -> None:
    """Replicas answer alike, whichever of them gets a row; what servers call the same folder is theirs to choose."""
    for fact in ("token_ids", "context_length", *(() if any_name else ("model",))):
        here, there = getattr(info, fact), getattr(other, fact)
        if here != there:
            said = f"{address} differs from another --base-url: {fact.replace('_', ' ')} {here}, there {there}"
            raise RequestError(said, hint="Run them apart.")


def _refused(endpoint: Endpoint, error: RequestError) -> RequestError:
    what = "the key of --api-key-env" if endpoint.token else "requests without a key"
    hint = (
        "Check that variable's value." if endpoint.token else "Give --api-key-env=NAME of the variable that holds it."
    )
    return RequestError(f"{endpoint.base_url} refuses {what} ({error.args[0]})", status=error.status, hint=hint)


def _engine(kind: str, served_name: str) -> Engine:
    spec = ServerSpec(model=served_name, served_name=served_name, allocation=Allocation(kind))
    if kind == "vllm":
        return VLLMEngine(spec)
    if kind == "sglang":
        return SGLangEngine(spec)
    return HFEngine(served_name) if kind == "hf" else HostedChat(served_name)
