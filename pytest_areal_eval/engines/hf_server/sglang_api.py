"""SGLang's own endpoints: ``/generate``, ``/abort_request``, ``/model_info``, ``/update_weights_from_disk``."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from pytest_areal_eval.engines.hf_server.fields import SAMPLING_FIELDS, Fields, RequestRefusedError, read_sampling
from pytest_areal_eval.engines.hf_server.generation import Finish, Generation
from pytest_areal_eval.engines.hf_server.service import MAX_N, Service, read_json

_BODY = frozenset({"text", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "rid", "stream"})
_SAMPLING = SAMPLING_FIELDS | {"max_new_tokens", "min_new_tokens", "n", "sampling_seed"}


def routes(service: Service) -> list[web.RouteDef]:
    """The endpoints of one service."""

    async def model_info(_: web.Request) -> web.Response:
        return web.json_response(_model_info(service))

    async def generate(request: web.Request) -> web.Response:
        generations = _read(service, await read_json(request))
        await service.complete(generations)
        answers = [_answer(g) for g in generations]
        return web.json_response(answers if len(answers) > 1 else answers[0])

    async def abort_request(request: web.Request) -> web.Response:
        fields = Fields(await read_json(request), {"rid", "abort_all"})
        if not isinstance(fields.raw("rid", ""), str):
            fields.refuse("rid", "expected a string")
        service.abort(list(service.running) if fields.flag("abort_all") else [fields.raw("rid", "")])
        return web.Response()

    async def update_weights_from_disk(request: web.Request) -> web.Response:
        fields = Fields(await read_json(request), {"model_path"})
        path = fields.raw("model_path")
        if not isinstance(path, str):
            fields.refuse("model_path", "expected a checkpoint's path")
        await service.reload(path)
        return web.json_response({"success": True, "message": f"{path} is loaded"})

    return [
        web.get("/model_info", model_info),
        web.post("/generate", generate),
        web.post("/abort_request", abort_request),
        web.post("/update_weights_from_disk", update_weights_from_disk),
    ]


def _model_info(service: Service) -> dict[str, Any]:
    model = service.ready
    return {
        "model_path": model.path,
        "served_model_name": service.served_name,
        "context_length": model.context_length,
        "max_batch": service.rows,
        "dtype": model.dtype,
        "device": model.device,
        "threads": model.threads,
        "decoder": model.decoder.name,
        "is_generation": True,
    }


def _read(service: Service, body: Any) -> list[Generation]:
    """The generations that a ``/generate`` body asks for."""
    model, fields = service.ready, Fields(body, _BODY)
    fields.only("stream", False)
    fields.only("logprob_start_len", -1)
    if ("text" in fields) == ("input_ids" in fields):
        raise RequestRefusedError("give either `text` or `input_ids`", param="input_ids")
    if "text" in fields:
        text = fields.raw("text")
        if not isinstance(text, str):
            fields.refuse("text", "expected one string")
        prompt = list(model.tokenizer(text).input_ids)
    else:
        prompt = fields.ids("input_ids", model.vocab_size)
    rid = fields.raw("rid")
    if rid is not None and (not isinstance(rid, str) or rid in service.running):
        fields.refuse("rid", "expected a string that no running request has")
    params = Fields(fields.raw("sampling_params", {}), _SAMPLING)
    wanted = params.integer("max_new_tokens", 128, 1, 2**31)
    sampling = read_sampling(
        params,
        max_new_tokens=service.budget(prompt, wanted, "max_new_tokens"),
        min_name="min_new_tokens",
        seed_name="sampling_seed",
        logprobs=fields.flag("return_logprob"),
        eos_ids=model.eos_ids,
    )
    return service.generations(prompt, sampling, params.integer("n", 1, 1, MAX_N), rid)


def _answer(generation: Generation) -> dict[str, Any]:
    assert generation.finish is not None
    meta: dict[str, Any] = {
        "id": generation.rid,
        "finish_reason": _finish_reason(generation.finish, len(generation.output)),
        "prompt_tokens": len(generation.prompt),
        "completion_tokens": len(generation.output),
    }
    if generation.sampling.logprobs:
        pairs = zip(generation.logprobs, generation.output, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
    return {"text": generation.answer(), "output_ids": generation.output, "meta_info": meta}


def _finish_reason(finish: Finish, length: int) -> dict[str, Any]:
    if finish.kind == "stop":
        return {"type": "stop", "matched": finish.matched}
    if finish.kind == "length":
        return {"type": "length", "length": length}
    return {"type": "abort", "message": finish.message}
