"""OpenAI's endpoints: ``/v1/chat/completions``, ``/v1/completions``, ``/v1/models``.

``min_tokens``, ``top_k``, ``stop_token_ids``, ``ignore_eos``, ``skip_special_tokens``, ``chat_template_kwargs`` and
``return_token_ids`` are vLLM's additions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from pytest_areal_eval.engines.hf_server.fields import SAMPLING_FIELDS, Fields, RequestRefusedError, read_sampling
from pytest_areal_eval.engines.hf_server.generation import Generation
from pytest_areal_eval.engines.hf_server.service import MAX_N, Service, raise_for_errors, read_json

_UNUSED = frozenset({"user", "store", "metadata", "service_tier", "prompt_cache_key", "parallel_tool_calls"})
"""Fields that change no answer here."""
_CONTROL = frozenset({"stream", "stream_options", "return_token_ids", "request_id"})
_COMMON = SAMPLING_FIELDS | _UNUSED | _CONTROL | {"model", "max_tokens", "min_tokens", "n", "seed", "logprobs"}
_TEMPLATE = frozenset(
    {"tools", "tool_choice", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"}
)
_CHAT = _COMMON | _TEMPLATE | {"messages", "max_completion_tokens", "top_logprobs", "response_format"}
_COMPLETION = _COMMON | {"prompt", "echo", "best_of"}


@dataclass(frozen=True)
class Call:
    """One request that was understood."""

    id: str
    model: str
    kind: str
    generations: list[Generation]
    choice: Callable[[Generation, str], dict[str, Any]]
    stream: bool
    with_usage: bool
    token_ids: bool

    def envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The object around choices."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": int(time.time()),
            "model": self.model,
            "choices": choices,
        }


def routes(service: Service) -> list[web.RouteDef]:
    """The endpoints of one service."""

    async def models(_: web.Request) -> web.Response:
        card = {
            "id": service.served_name,
            "object": "model",
            "created": service.started_at,
            "owned_by": "pytest-areal-eval",
            "root": service.ready.path,
            "max_model_len": service.ready.context_length,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def chat(request: web.Request) -> web.StreamResponse:
        return await _serve(service, request, _read_chat(service, await read_json(request)))

    async def completions(request: web.Request) -> web.StreamResponse:
        return await _serve(service, request, _read_completion(service, await read_json(request)))

    return [
        web.get("/v1/models", models),
        web.post("/v1/chat/completions", chat),
        web.post("/v1/completions", completions),
    ]


async def _serve(service: Service, request: web.Request, call: Call) -> web.StreamResponse:
    if call.stream:
        return await _serve_stream(service, request, call)
    await service.complete(call.generations)
    choices = []
    for number, generation in enumerate(call.generations):
        choices.append(call.choice(generation, generation.answer()) | _ending(call, generation, number))
    body = call.envelope(choices) | {"usage": _usage(call.generations)}
    if call.token_ids:
        body["prompt_token_ids"] = call.generations[0].prompt
    return web.json_response(body)


async def _serve_stream(service: Service, request: web.Request, call: Call) -> web.StreamResponse:
    """Server-sent events: one chunk for each piece of text, usage where asked for, ``[DONE]``."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)

    async def send(payload: Any) -> None:
        await response.write(f"data: {json.dumps(payload)}\n\n".encode())

    numbers = {id(g): number for number, g in enumerate(call.generations)}
    async for generation, text, last in service.stream(call.generations):
        choice = _chunk(call, text) | {"index": numbers[id(generation)], "finish_reason": None}
        if last:
            choice |= _ending(call, generation, choice["index"])
        await send(call.envelope([choice]))
    try:
        raise_for_errors(call.generations)
    except RequestRefusedError as e:  # the status line has been sent: the error goes into the stream
        await send(e.body)
    if call.with_usage:
        await send(call.envelope([]) | {"usage": _usage(call.generations)})
    await response.write(b"data: [DONE]\n\n")
    return response


def _chunk(call: Call, text: str) -> dict[str, Any]:
    if call.kind == "chat.completion.chunk":
        return {"delta": {"role": "assistant", "content": text}}
    return {"text": text}


def _ending(call: Call, generation: Generation, number: int) -> dict[str, Any]:
    """What a finished choice has beside its text."""
    finish = generation.finish
    assert finish is not None
    ending: dict[str, Any] = {
        "index": number,
        "finish_reason": finish.kind,
        "stop_reason": finish.matched if isinstance(finish.matched, str) else None,
    }
    if call.token_ids:
        ending["token_ids"] = generation.output
    return ending


def _usage(generations: Sequence[Generation]) -> dict[str, int]:
    prompts = sum(len(g.prompt) for g in generations if g.index == 0)
    answers = sum(len(g.output) for g in generations)
    return {"prompt_tokens": prompts, "completion_tokens": answers, "total_tokens": prompts + answers}


def _read_chat(service: Service, body: Any) -> Call:
    fields = Fields(body, _CHAT)
    service.check_name(fields.raw("model"))
    fields.only("top_logprobs", 0)
    fields.only("response_format", {"type": "text"})
    fields.only("tool_choice", "auto", "none")
    prompt = _render(service, fields)
    name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    wanted = fields.integer(name, 1, 1, 2**31) if name in fields else None
    generations = _generations(service, fields, [prompt], wanted, name, logprobs=fields.flag("logprobs"))

    def choice(generation: Generation, text: str) -> dict[str, Any]:
        message = {"message": {"role": "assistant", "content": text}}
        return message | ({"logprobs": _chat_logprobs(generation)} if generation.sampling.logprobs else {})

    return _call(service, fields, generations, "chat.completion", "chatcmpl", choice)


def _render(service: Service, fields: Fields) -> list[int]:
    """The chat template over the messages."""
    tokenizer, messages = service.ready.tokenizer, fields.raw("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, Mapping) for m in messages):
        raise RequestRefusedError("`messages` must be a list of at least one message", param="messages")
    options = fields.raw("chat_template_kwargs", {})
    if not isinstance(options, Mapping):
        fields.refuse("chat_template_kwargs", "expected an object")
    more = fields.flag("continue_final_message")
    tools = None if fields.raw("tool_choice") == "none" else fields.raw("tools")
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tools=tools,
            tokenize=False,
            add_generation_prompt=fields.flag("add_generation_prompt", not more),
            continue_final_message=more,
            **options,
        )
    except Exception as e:  # a template raises whatever its author chose
        raise RequestRefusedError(f"the chat template refused the messages: {e}", param="messages") from e
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def _read_completion(service: Service, body: Any) -> Call:
    fields = Fields(body, _COMPLETION)
    service.check_name(fields.raw("model"))
    fields.only("echo", False)
    fields.only("best_of", fields.raw("n", 1))
    wanted, logprobs = fields.integer("max_tokens", 16, 1, 2**31), fields.raw("logprobs")
    fields.only("logprobs", 0, 1, True, False)
    prompts = _prompts(service, fields)
    keep = logprobs is not None and logprobs is not False
    generations = _generations(service, fields, prompts, wanted, "max_tokens", logprobs=keep)

    def choice(generation: Generation, text: str) -> dict[str, Any]:
        return {"text": text} | ({"logprobs": _completion_logprobs(generation)} if keep else {})

    return _call(service, fields, generations, "text_completion", "cmpl", choice)


def _prompts(service: Service, fields: Fields) -> list[list[int]]:
    """One string, several strings, one list of ids, or several lists of ids."""
    model, value = service.ready, fields.raw("prompt")
    several = value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]
    prompts = []
    for one in several:
        if isinstance(one, str):
            prompts.append(list(model.tokenizer(one).input_ids))
        else:
            prompts.append(Fields({"prompt": one}, {"prompt"}).ids("prompt", model.vocab_size))
    return prompts


def _generations(
    service: Service, fields: Fields, prompts: list[list[int]], wanted: int | None, name: str, *, logprobs: bool
) -> list[Generation]:
    n, streamed = fields.integer("n", 1, 1, MAX_N), fields.flag("stream")
    rid = fields.raw("request_id")
    if rid is not None and (not isinstance(rid, str) or rid in service.running):
        fields.refuse("request_id", "expected a string that no running request has")
    generations: list[Generation] = []
    for prompt in prompts:
        sampling = read_sampling(
            fields,
            max_new_tokens=service.budget(prompt, wanted, name),
            min_name="min_tokens",
            seed_name="seed",
            logprobs=logprobs,
            eos_ids=service.ready.eos_ids,
        )
        rid = rid or (generations[0].rid if generations else None)
        generations += service.generations(prompt, sampling, n, rid, streamed=streamed)
    return generations


def _call(
    service: Service,
    fields: Fields,
    generations: list[Generation],
    kind: str,
    prefix: str,
    choice: Callable[[Generation, str], dict[str, Any]],
) -> Call:
    stream = fields.flag("stream")
    options = fields.raw("stream_options", {})
    return Call(
        id=f"{prefix}-{generations[0].rid}",
        model=service.served_name,
        kind=f"{kind}.chunk" if stream and kind == "chat.completion" else kind,
        generations=generations,
        choice=choice,
        stream=stream,
        with_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
        token_ids=fields.flag("return_token_ids"),
    )


def _chat_logprobs(generation: Generation) -> dict[str, Any]:
    content = []
    for token, logprob in zip(generation.output, generation.logprobs, strict=True):
        piece = generation.text.decoder([token], False)
        content.append({"token": piece, "logprob": logprob, "bytes": list(piece.encode()), "top_logprobs": []})
    return {"content": content}


def _completion_logprobs(generation: Generation) -> dict[str, Any]:
    tokens = [generation.text.decoder([token], False) for token in generation.output]
    return {"tokens": tokens, "token_logprobs": generation.logprobs, "top_logprobs": None}
