"""The embedded engine: transformers in a server process of our own, for a machine without vLLM or SGLang.

``--backend=hf``.  The server (:mod:`pytest_areal_eval.engines.hf_server`) batches continuously and speaks SGLang's
``/generate``; this side builds its command and speaks its HTTP.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import TOP_K_OFF, ModelRequest, ModelResponse, StopReason
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, Launch, TransientError, describe
from pytest_areal_eval.engines.http import get_json, post_json, token_budget
from pytest_areal_eval.errors import RequestError

if TYPE_CHECKING:
    import aiohttp

ABORT_TIMEOUT_S = 1.0


class HFEngine:
    """Any causal language model of transformers.

    Args:
        model: checkpoint directory or hub name.
        replicas: server processes.
        dtype: ``auto`` is float32 on a CPU and the checkpoint's own on a GPU; else ``float32``, ``bfloat16``,
            ``float16``.
        context_length: prompt and answer together, in tokens; None for the checkpoint's own.
        max_batch: sequences that one replica runs at once.
        trust_remote_code: run the checkpoint's own code.
        python: the interpreter that runs the server.
        gpus: GPUs of one replica, 0 or 1.
        threads: CPU threads of one replica; None lets the server choose.
    """

    name = "hf"

    def __init__(
        self,
        model: str,
        *,
        replicas: int = 1,
        dtype: str = "auto",
        context_length: int | None = None,
        max_batch: int = 32,
        trust_remote_code: bool = False,
        python: str = sys.executable,
        gpus: int = 0,
        threads: int | None = None,
    ) -> None:
        self.model, self.replicas, self.dtype = model, replicas, dtype
        self.context_length, self.max_batch = context_length, max_batch
        self.trust_remote_code, self.python = trust_remote_code, python
        self.gpus, self.threads = gpus, threads
        self.info = EngineInfo(context_length=context_length, concurrency=max_batch)

    def launch(self, name: str, token: str) -> Launch:
        """The server's command; the token goes into its environment, out of sight of ``ps``."""
        argv = [self.python, "-m", "pytest_areal_eval.engines.hf_server", "--model", self.model]
        argv += ["--host", "{host}", "--port", "{port}", "--nonce", "{nonce}"]
        argv += ["--dtype", self.dtype, "--max-batch", str(self.max_batch)]
        if self.context_length is not None:
            argv += ["--context-length", str(self.context_length)]
        if self.threads is not None:
            argv += ["--threads", str(self.threads)]
        if self.trust_remote_code:
            argv.append("--trust-remote-code")
        return Launch(tuple(argv), env={"AREAL_EVAL_TOKEN": token}, gpus=self.gpus, cpus=self.threads or 1)

    async def discover(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> EngineInfo:
        """Read ``/model_info``; kept in ``info`` as well."""
        body = await get_json(http, endpoint, "/model_info")
        try:
            self.info = EngineInfo(
                context_length=body["context_length"],
                concurrency=body["max_batch"],
                model=body["served_model_name"],
            )
        except (KeyError, TypeError) as e:
            raise TransientError(f"{endpoint.name} GET /model_info: unexpected body {describe(body)}") from e
        return self.info

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """Generate once.  Log-probabilities come back where ``request.metadata["logprobs"]`` is true.

        Raises:
            TransientError: it may succeed elsewhere or later.
            RequestError: it never will.
            PromptTooLong: the prompt fills the context.
        """
        server = _needed(endpoint)
        if request.gconfig.use_beam_search:
            raise RequestError("the hf engine has no beam search", hint="Set gconfig.use_beam_search=false.")
        chat = request.messages is not None
        path = "/v1/chat/completions" if chat else "/generate"
        body = await post_json(http, server, path, (self._chat_body if chat else self._ids_body)(request))
        try:
            response = _from_chat(body) if chat else _from_generate(body)
        except (KeyError, TypeError, IndexError, ValueError) as e:
            raise TransientError(f"{server.name} POST {path}: unexpected body {describe(body)}") from e
        response.replica, response.tokenizer = server.name, request.tokenizer
        response.input_tokens = response.input_tokens or list(request.input_ids)
        response.output_versions = [0] * response.output_len
        return response

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """Free the request's row.  The server also frees it by itself when it sees the connection close."""
        import asyncio

        with contextlib.suppress(TransientError, RequestError, TimeoutError):
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await post_json(http, _needed(endpoint), "/abort_request", {"rid": request.rid})

    def _ids_body(self, request: ModelRequest) -> dict[str, Any]:
        sampling = _sampling(request) | {
            "max_new_tokens": token_budget(request, self.info),
            "min_new_tokens": request.gconfig.min_new_tokens,
            "sampling_seed": request.gconfig.seed,
            "n": 1,
        }
        return {
            "rid": request.rid,
            "input_ids": request.input_ids,
            "sampling_params": sampling,
            "return_logprob": bool(request.metadata.get("logprobs")),
        }

    def _chat_body(self, request: ModelRequest) -> dict[str, Any]:
        """The server renders the prompt, so its length is not known here: a limit that the context cannot hold anyway
        is left to the server, which then gives all that the prompt leaves."""
        options = dict(request.template_kwargs)
        tools, wanted = options.pop("tools", None), token_budget(request, self.info)
        fits = self.info.context_length is None or wanted < self.info.context_length
        return _sampling(request) | {
            "request_id": request.rid,
            "messages": request.messages,
            "tools": tools,
            "chat_template_kwargs": options,
            "max_completion_tokens": wanted if fits else None,
            "min_tokens": request.gconfig.min_new_tokens,
            "seed": request.gconfig.seed,
            "n": 1,
            "logprobs": bool(request.metadata.get("logprobs")),
            "return_token_ids": True,
        }


def _needed(endpoint: Endpoint | None) -> Endpoint:
    if endpoint is None:
        raise RequestError("the hf engine needs a replica to send to", hint="Initialize the controller first.")
    return endpoint


def _sampling(request: ModelRequest) -> dict[str, Any]:
    """The settings that both endpoints call the same, every one sent."""
    gconfig = request.gconfig
    return {
        "temperature": gconfig.effective_temperature,
        "top_p": gconfig.top_p,
        "top_k": -1 if gconfig.top_k >= TOP_K_OFF else gconfig.top_k,
        "frequency_penalty": gconfig.frequency_penalty,
        "stop": gconfig.stop or [],
        "stop_token_ids": gconfig.stop_token_ids,
        "ignore_eos": gconfig.ignore_eos,
        "skip_special_tokens": gconfig.skip_special_tokens,
    }


def _from_generate(body: Any) -> ModelResponse:
    meta = body["meta_info"]
    reason = meta["finish_reason"]
    matched = reason.get("matched")
    return ModelResponse(
        output_tokens=list(body["output_ids"]),
        output_logprobs=[float(logprob) for logprob, *_ in meta.get("output_token_logprobs", ())],
        stop_reason=_stop_reason(reason["type"]),
        stop_string=matched if isinstance(matched, str) else None,
        text=str(body["text"]),
        input_count=int(meta["prompt_tokens"]),
        output_count=int(meta["completion_tokens"]),
    )


def _from_chat(body: Any) -> ModelResponse:
    choice, usage = body["choices"][0], body["usage"]
    logprobs = (choice.get("logprobs") or {}).get("content") or ()
    return ModelResponse(
        input_tokens=list(body["prompt_token_ids"]),
        output_tokens=list(choice["token_ids"]),
        output_logprobs=[float(entry["logprob"]) for entry in logprobs],
        stop_reason=_stop_reason(choice["finish_reason"]),
        stop_string=choice.get("stop_reason"),
        text=str(choice["message"]["content"]),
        input_count=int(usage["prompt_tokens"]),
        output_count=int(usage["completion_tokens"]),
    )


_STOP_REASONS: dict[str, StopReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def _stop_reason(kind: str) -> StopReason:
    if kind not in _STOP_REASONS:
        raise ValueError(f"unknown finish reason {kind!r}")
    return _STOP_REASONS[kind]
