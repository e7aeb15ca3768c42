"""Three request forms: SGLang's ``/generate``, ``/v1/completions`` with ids, chat with messages.

Invariant: every sampling setting is sent, also those at their default, so that a checkpoint's own
``generation_config.json`` changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import TOP_K_OFF, GenerationHyperparameters, ModelRequest, ModelResponse, has_pictures
from pytest_areal_eval.engines.answers import check_fields, parse_chat, parse_completion, parse_generate
from pytest_areal_eval.engines.base import Endpoint, Engine, EngineInfo, TransientError, describe
from pytest_areal_eval.engines.http import MALFORMED, post_json, token_budget, unexpected
from pytest_areal_eval.engines.schemas import of_openai, of_sglang, of_vllm, refuse_schemas
from pytest_areal_eval.errors import RequestError

if TYPE_CHECKING:
    import aiohttp

ABORT_TIMEOUT_S = 1.0
NO_ROOM = re.compile(r"max_(completion_)?tokens|context.(length|window)", re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """One way to ask: where, with which body, and how its answer is read."""

    path: str
    body: Callable[[ModelRequest, EngineInfo], dict[str, Any]]
    parse: Callable[[Any], ModelResponse]


async def ask(
    engine: Engine,
    request: ModelRequest,
    endpoint: Endpoint | None,
    http: aiohttp.ClientSession,
    *,
    ids: Form,
    chat: Form,
    pictures: Form | None = None,
) -> ModelResponse:
    """Generate once: ``chat`` for messages, ``ids`` for ids, ``pictures`` for ids with ``image_data``.

    Raises:
        TransientError: it may succeed elsewhere or later.
        RequestError: it never will.
        PromptTooLong: the prompt fills the context.
    """
    refuse_settings(request, engine.name)
    refuse_schemas(request, engine)
    form = ids if request.messages is None else chat
    if request.image_data or has_pictures(request.messages or ()):
        form = _form_for_pictures(engine, request, pictures, chat)
    body = form.body(request, engine.info)
    try:
        return await exchange(http, endpoint, form.path, request, body, form.parse)
    except RequestError as error:
        if body.get("max_completion_tokens") is None or not leaves_no_room(error):
            raise
    return await exchange(http, endpoint, form.path, request, body | {"max_completion_tokens": None}, form.parse)


def leaves_no_room(error: RequestError) -> bool:
    """Whether a server refuses messages since prompt and limit together, or the limit alone, are more than it can hold.

    Without a limit it gives what the prompt leaves, which is less: as where ids are sent and the limit is cut here.
    """
    return error.status == 400 and NO_ROOM.search(str(error)) is not None


async def exchange(
    http: aiohttp.ClientSession,
    endpoint: Endpoint | None,
    path: str,
    request: ModelRequest,
    body: Mapping[str, Any],
    parse: Callable[[Any], ModelResponse],
) -> ModelResponse:
    """Send one request and read its answer; one attempt.

    Raises:
        TransientError: it may succeed elsewhere or later; an answer of another form counts as that, and an aborted one.
        RequestError: it never will.
    """
    if endpoint is None:
        raise RequestError("there is no replica to send to", hint="Initialize the controller first.")
    answer = await post_json(http, endpoint, path, body)
    try:
        response = parse(answer)
        check_fields(response)
    except MALFORMED as e:
        raise unexpected(f"{endpoint.name} POST {path}", answer, e) from e
    if response.stop_reason == "abort":  # the beginning of an answer, which must not be graded as one
        raise TransientError(f"{endpoint.name} POST {path}: the server aborted the request: {describe(answer)}")
    response.replica, response.tokenizer = endpoint.name, request.tokenizer
    response.input_images, response.processor = list(request.image_data), request.processor
    response.input_tokens = response.input_tokens or list(request.input_ids)
    response.output_versions = [0] * response.output_len
    return response


def _form_for_pictures(engine: Engine, request: ModelRequest, form: Form | None, chat: Form) -> Form:
    if form is None:
        raise RequestError(
            f"the {engine.name} engine takes no images", status=400, hint="Use --backend=sglang or vllm for them."
        )
    if request.messages is None:
        return form
    if request.image_data:
        raise RequestError("image_data beside messages", hint="Put the images into the messages, as data: URIs.")
    return chat


def refuse_settings(request: ModelRequest, engine: str) -> None:
    """Refuse what no engine here does, by its name; what servers make of an empty stop string differs."""
    if request.gconfig.use_beam_search:
        raise RequestError(f"the {engine} engine has no beam search", hint="Set gconfig.use_beam_search=false.")
    if not all(isinstance(text, str) and text for text in request.gconfig.stop or ()):
        raise RequestError(f"gconfig.stop={request.gconfig.stop!r}: stop strings are texts, and none is empty")
    adapter = request.gconfig.lora_name
    if adapter != GenerationHyperparameters.lora_name:
        raise RequestError(
            f"gconfig.lora_name={adapter!r}: the {engine} engine chooses no adapter for a request",
            hint="Merge the adapter into the checkpoint, or start a server with it and give --base-url and --model.",
        )


def common_sampling(request: ModelRequest) -> dict[str, Any]:
    """The settings that all three forms call the same."""
    gconfig = request.gconfig
    return {
        "temperature": gconfig.effective_temperature,
        "top_p": gconfig.top_p,
        "top_k": gconfig.top_k if limits_top_k(gconfig) else -1,
        "min_p": 0.0,
        "frequency_penalty": gconfig.frequency_penalty,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop": gconfig.stop or [],
        "stop_token_ids": _stop_token_ids(request),
        "ignore_eos": gconfig.ignore_eos,
        "skip_special_tokens": gconfig.skip_special_tokens,
    }


def limits_top_k(gconfig: GenerationHyperparameters) -> bool:
    """Whether ``top_k`` leaves anything out; 0 and -1 mean "off" to most servers, and SGLang refuses the 0."""
    return 0 < gconfig.top_k < TOP_K_OFF


def _stop_token_ids(request: ModelRequest) -> list[int]:
    """AReaL adds the tokenizer's own ends to every request; with ``ignore_eos`` they must not end the answer.

    Raises:
        RequestError: one that is no token's: beside a row with ``min_new_tokens`` SGLang 0.5.23 dies of it.
    """
    ids = request.gconfig.stop_token_ids
    if ids and hasattr(request.tokenizer, "__len__") and not -1 < min(ids) <= max(ids) < len(request.tokenizer):
        wrong = [i for i in ids if not -1 < i < len(request.tokenizer)]
        raise RequestError(
            f"gconfig.stop_token_ids={wrong}: the tokenizer has {len(request.tokenizer)} tokens",
            hint="Give ids of this checkpoint's tokenizer; another one's end nothing here.",
        )
    if not request.gconfig.ignore_eos or request.tokenizer is None:
        return ids
    ends = (request.tokenizer.eos_token_id, request.tokenizer.pad_token_id)
    return [i for i in ids if i not in ends]


def wants_logprobs(request: ModelRequest) -> bool:
    """Whether ``metadata["logprobs"]`` asks for the sampled tokens' log-probabilities."""
    return bool(request.metadata.get("logprobs"))


# SGLang's /generate, which the embedded server speaks too


def generate_body(request: ModelRequest, info: EngineInfo) -> dict[str, Any]:
    """Ids in; raises :class:`~pytest_areal_eval.errors.PromptTooLong` if they leave no room."""
    return {
        "rid": request.rid,
        "input_ids": request.input_ids,
        "sampling_params": common_sampling(request)
        | {
            "max_new_tokens": token_budget(request, info),
            "min_new_tokens": request.gconfig.min_new_tokens,
            "sampling_seed": request.gconfig.seed,
            "n": 1,
            **of_sglang(request),
        },
        "return_logprob": wants_logprobs(request),
        "logprob_start_len": -1,
    }


async def abort_request(http: aiohttp.ClientSession, endpoint: Endpoint, request: ModelRequest) -> None:
    """Free a request's place by its rid; best effort, within a second."""
    with contextlib.suppress(TransientError, RequestError, TimeoutError):
        async with asyncio.timeout(ABORT_TIMEOUT_S):
            await post_json(http, endpoint, "/abort_request", {"rid": request.rid})


# /v1/completions with ids in and ids out, as vLLM has it


def completion_body(request: ModelRequest, info: EngineInfo) -> dict[str, Any]:
    """Ids in; raises :class:`~pytest_areal_eval.errors.PromptTooLong` if they leave no room."""
    return common_sampling(request) | {
        "model": info.model,
        "request_id": request.rid,
        "prompt": request.input_ids,
        "add_special_tokens": False,
        "max_tokens": token_budget(request, info),
        "min_tokens": request.gconfig.min_new_tokens,
        "seed": request.gconfig.seed,
        "n": 1,
        "logprobs": 0 if wants_logprobs(request) else None,
        "return_token_ids": True,
        **of_vllm(request),
    }


# /v1/chat/completions, where the server applies the chat template


def chat_body(request: ModelRequest, info: EngineInfo) -> dict[str, Any]:
    """Messages in, with the extensions that vLLM, SGLang and the embedded server share."""
    options = dict(request.template_kwargs)
    tools = options.pop("tools", None)
    return common_sampling(request) | {
        "model": info.model,
        "request_id": request.rid,
        "messages": request.messages,
        "tools": tools,
        "chat_template_kwargs": options,
        "max_completion_tokens": chat_budget(request, info),
        "min_tokens": request.gconfig.min_new_tokens,
        "seed": request.gconfig.seed,
        "n": 1,
        "logprobs": wants_logprobs(request),
        "return_token_ids": True,
        **of_openai(request),
    }


def chat_budget(request: ModelRequest, info: EngineInfo) -> int | None:
    """The server renders the prompt, so its length is not known here: a limit that the context cannot hold anyway is
    left to the server (None), which then gives all that the prompt leaves."""
    wanted = token_budget(request, info)
    return wanted if info.context_length is None or wanted < info.context_length else None


GENERATE = Form("/generate", generate_body, parse_generate)
COMPLETIONS = Form("/v1/completions", completion_body, parse_completion)
CHAT = Form("/v1/chat/completions", chat_body, parse_chat)
