"""Servers that run already: vLLM, SGLang, our own, or any OpenAI-compatible endpoint.

``--base-url=URL`` (repeatable: each is a replica).  A server that takes and gives token ids is spoken to as its own
engine does; any other one gets messages through ``/v1/chat/completions`` and tokenizes itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.allocation import Allocation
from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.engines.answers import parse_chat
from pytest_areal_eval.engines.base import Endpoint, Engine, EngineInfo, Launch
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.engines.http import MALFORMED, get_json, openai_path, post_json, token_budget, unexpected
from pytest_areal_eval.engines.schemas import of_openai
from pytest_areal_eval.engines.server import ServerSpec
from pytest_areal_eval.engines.sglang import SGLangEngine
from pytest_areal_eval.engines.vllm import VLLMEngine
from pytest_areal_eval.engines.wire import exchange, limits_top_k, refuse_settings, wants_logprobs
from pytest_areal_eval.errors import RequestError

if TYPE_CHECKING:
    import aiohttp

OWNERS = {"vllm": "vllm", "sglang": "sglang", "pytest-areal-eval": "hf"}
"""``owned_by`` in ``/v1/models``, and the engine that speaks to it."""
UNLISTED = "Check the address; if it is right, give --model=NAME, as the endpoint calls it."
INEXACT = "messages through /v1/chat/completions: the server tokenizes, so prompts are not known token by token"
HOSTED_CONCURRENCY = 32
NO_SUCH_PAGE = frozenset({404, 405, 501})


class OpenAIEngine:
    """Attaches; nothing is started.

    Args:
        endpoints: the servers.
        model: its name there, or the local checkpoint that it serves; None takes the only one.
        kind: ``vllm``, ``sglang`` or ``hf`` where that is known; "" asks each server.
    """

    name = "openai"

    def __init__(self, endpoints: Sequence[Endpoint], model: str | None, kind: str = "") -> None:
        self.endpoints = tuple(endpoints)
        self.replicas = len(self.endpoints)
        self.model = model
        self.kind = kind
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
            models = await _models(endpoint, http)
        except RequestError as error:
            raise _refused(endpoint, error) if error.status in (401, 403) else error from error
        if models is not None and self._is_folder:
            models = await _with_folders(models, endpoint, http)
        served = choose_model(models, self.model, endpoint.base_url)
        told = OWNERS.get(str(served.get("owned_by")), "")
        if self.kind and told not in ("", self.kind):
            hint = "Leave out --backend: the server says what it is."
            raise RequestError(f"{endpoint.base_url} is no {self.kind} server: it says that it is {told}", hint=hint)
        kind = self.kind or told or await self._probe(endpoint, http, served)
        engine = _engine(kind, str(served["id"]))
        info = await engine.discover(endpoint, http)
        for other in self._spoken.values():
            _check_alike(info, other.info, endpoint.base_url, any_name=self._is_folder)
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
        self.info = EngineInfo(concurrency=HOSTED_CONCURRENCY, model=model, token_ids=False, note=INEXACT, schemas=True)
        self._limit_key = "max_tokens"

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
        body, path = self._body(request), openai_path(endpoint, "/chat/completions")
        key = self._limit_key
        body[key] = token_budget(request, self.info)
        try:
            return await exchange(http, endpoint, path, request, body, parse_chat)
        except RequestError as error:
            if error.status != 400 or key != "max_tokens" or "max_completion_tokens" not in str(error):
                raise
        self._limit_key = "max_completion_tokens"  # OpenAI's reasoning models know no other name for it
        body["max_completion_tokens"] = body.pop("max_tokens")
        return await exchange(http, endpoint, path, request, body, parse_chat)

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """The connection is closed already; there is no more to do."""

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        refuse_settings(request, self.name)
        if request.messages is None:
            raise RequestError("this endpoint takes no token ids", hint="Send messages: ModelRequest(messages=[...]).")
        if request.image_data:
            raise RequestError("image_data beside messages", hint="Put the images into the messages, as data: URIs.")
        gconfig, options = request.gconfig, dict(request.template_kwargs)
        tools = options.pop("tools", None)
        unknown = {
            "top_k": limits_top_k(request),
            "min_new_tokens": gconfig.min_new_tokens > 0,
            "ignore_eos": gconfig.ignore_eos,
            "stop_token_ids": bool(gconfig.stop_token_ids),
            "skip_special_tokens": not gconfig.skip_special_tokens,
            "template_kwargs": bool(options),
        }
        refused = [name for name, is_set in unknown.items() if is_set]
        if refused:
            raise RequestError(
                f"OpenAI's chat API has no {', '.join(refused)}",
                hint="Leave it at its default, or name the server's kind: --backend=vllm or --backend=sglang.",
            )
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


def choose_model(models: Sequence[Mapping[str, Any]] | None, wanted: str | None, where: str) -> Mapping[str, Any]:
    """The served model that ``--model`` means: by its name, or by the folder that the server loaded.

    Raises:
        RequestError: none is; says which there are.
    """
    if models is None:
        if wanted is None or Path(wanted).is_dir():
            raise RequestError(f"{where} does not list its models", hint=UNLISTED)
        return {"id": wanted}
    if wanted is None:
        if len(models) == 1:
            return models[0]
        raise RequestError(f"{where} serves {len(models)} models{_names(models)}", hint="Give --model=NAME.")
    folder = Path(wanted).expanduser().resolve()
    same = [m for m in models if m["id"] == wanted]
    if not same and folder.is_dir():
        same = [m for m in models if _is_of(folder, m["id"]) or _is_of(folder, m.get("root"))]
    if not same:
        raise RequestError(f"{where} does not serve {wanted!r}; it serves{_names(models)}", hint="Give --model=NAME.")
    return same[0]


def _is_of(folder: Path, said: Any) -> bool:
    """Whether a server's path is that folder's; a relative one begins where the server was started."""
    path = Path(said) if isinstance(said, str) else Path()
    if path.is_absolute():
        return path.resolve() == folder
    return bool(path.parts) and folder.parts[-len(path.parts) :] == path.parts


def _names(models: Sequence[Mapping[str, Any]]) -> str:
    shown = [f"{m['id']} (from {m['root']})" if m.get("root") not in (None, m["id"]) else str(m["id"]) for m in models]
    return f": {', '.join(shown[:8]) or 'none'}{', …' if len(shown) > 8 else ''}"


async def _models(endpoint: Endpoint, http: aiohttp.ClientSession) -> list[Mapping[str, Any]] | None:
    path = openai_path(endpoint, "/models")
    try:
        body = await get_json(http, endpoint, path)
    except RequestError as error:
        if error.status in NO_SUCH_PAGE:
            return None
        raise
    try:
        return [dict(model, id=str(model["id"])) for model in body["data"]]
    except MALFORMED as error:
        raise unexpected(f"{endpoint.name} GET {path}", body, error) from error


async def _with_folders(
    models: list[Mapping[str, Any]], endpoint: Endpoint, http: aiohttp.ClientSession
) -> list[Mapping[str, Any]]:
    """SGLang lists the name that it serves; the folder that it loaded it tells elsewhere."""
    if not any(OWNERS.get(str(model.get("owned_by"))) == "sglang" for model in models):
        return models
    try:
        told = await get_json(http, endpoint, "/model_info")
    except RequestError:
        return models
    path = told.get("model_path") if isinstance(told, Mapping) else None
    return [{**model, "root": path} if model.get("root") in (None, model["id"]) else model for model in models]


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
