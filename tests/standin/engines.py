"""Stand-ins for vLLM, SGLang and a hosted API: their answers and errors as recorded in ``tests/engines/recorded``.

As a program, ``engines.py vllm FLAGS`` takes the real server's flags (an unknown one ends it as argparse ends the real
one) and, in ``STANDIN`` of the environment, JSON with ``latency_s``, ``token_s``, ``answers``, ``start_s``, ``faults``,
``die_after`` and ``crash`` (a text that it prints before it ends with 1).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a program, it is started by its path

from standin.faults import rules_from
from standin.http11 import Reply, Request
from standin.job import Job, generate_shape
from standin.schemas import fault, held, schema_of
from standin.server import Standin

VLLM_FLAGS = (
    "model served-model-name host port seed dtype max-num-seqs max-model-len gpu-memory-utilization "
    "kv-cache-memory-bytes generation-config uvicorn-log-level tensor-parallel-size pipeline-parallel-size "
    "distributed-executor-backend block-size enable-prefix-caching! no-enable-prefix-caching! "
    "no-enable-chunked-prefill! enforce-eager! trust-remote-code!"
)
SGLANG_FLAGS = (
    "api-key model-path served-model-name host port random-seed dtype max-running-requests context-length "
    "mem-fraction-static max-total-tokens tp-size pp-size schedule-policy sampling-defaults log-level log-level-http "
    "enable-metrics! disable-radix-cache! trust-remote-code! enable-deterministic-inference!"
)
SGLANG_SAMPLING = (
    "max_new_tokens min_new_tokens temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty "
    "stop stop_token_ids ignore_eos skip_special_tokens sampling_seed n json_schema"
)
OPENAI_CHAT = (
    "model messages temperature top_p frequency_penalty presence_penalty stop seed tools tool_choice response_format "
    "logprobs n"
)


class VLLM(Standin):
    """vLLM 0.32."""

    served_name = "tiny-math"
    root = "/models/tiny-math"
    kv_blocks = 1365
    development = False
    cached = True
    keeps_cache = False
    version = "0.32.0"

    def pages(self) -> dict[str, Callable[[Request], Reply | None]]:
        """It aborts by the closed connection alone; its development endpoints are closed by default."""
        pages: dict[str, Callable[[Request], Reply | None]] = {
            "/v1/models": self.models,
            "/metrics": self.metrics,
            "/version": self.tell_version,
        }
        if self.development:
            pages |= {"/collective_rpc": self.collective_rpc, "/reset_prefix_cache": self.reset_prefix_cache}
        return pages

    def forms(self) -> dict[str, Callable[..., Reply]]:
        """OpenAI's two."""
        return {"/v1/completions": held(completion_shape), "/v1/chat/completions": held(vllm_chat_shape)}

    def models(self, request: Request) -> Reply:
        """With the folder that it loaded."""
        model = {
            "id": self.served_name,
            "object": "model",
            "owned_by": "vllm",
            "root": self.root,
            "parent": None,
            "max_model_len": self.context_length,
        }
        return Reply({"object": "list", "data": [model]})

    def tell_version(self, request: Request) -> Reply:
        """Its version."""
        return Reply({"version": self.version})

    def collective_rpc(self, request: Request) -> Reply:
        """A call of each worker's method; its prefix cache stays as it is."""
        call = request.json()
        assert call["method"] == "reload_weights"
        refused = self.load_weights(call["kwargs"]["weights_path"]).status != 200
        return Reply({"error": "the weights do not fit"}, 500) if refused else Reply({"results": [None]})

    def reset_prefix_cache(self, request: Request) -> Reply:
        """Empty it; 0.23 tells nothing of it, 0.32 whether it did."""
        self.cached = self.keeps_cache
        return Reply(b"" if self.version < "0.32" else {"success": not self.cached})

    def metrics(self, request: Request) -> Reply:
        """The line that tells the KV cache's size."""
        labels = f'block_size="128",cache_dtype="auto",num_gpu_blocks="{self.kv_blocks}"'
        return Reply(f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n".encode())

    def refusal(self, path: str, body: Mapping[str, Any]) -> Reply | None:
        """404 for an unknown model, 400 for what cannot be served."""
        if body.get("model", self.served_name) != self.served_name:
            message = f"The model `{body['model']}` does not exist. Valid aliases: {self.served_name}."
            return Reply(self.error(path, 404, message), 404)
        wanted = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        if wanted > self.context_length:
            message = f"max_tokens={wanted} cannot be greater than max_model_len={self.context_length}."
            return Reply(self.error(path, 400, message), 400)
        wrong = fault(schema_of(body))
        if wrong:
            message = f'Failed to transform json schema into a grammar: <path>:4944: Unsupported type "{wrong}"'
            return Reply(self.error(path, 400, message), 400)
        return None

    def error(self, path: str, status: int, message: str) -> Any:
        """Nested under ``error``."""
        kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
        return {"error": {"message": message, "type": kind, "param": None, "code": status}}


class SGLang(Standin):
    """SGLang 0.5.23."""

    served_name = "tiny-math"
    grammar_backend = "xgrammar"

    def pages(self) -> dict[str, Callable[[Request], Reply | None]]:
        """Its own, beside OpenAI's."""
        return super().pages() | {"/v1/models": self.models, "/server_info": self.server_info}

    def forms(self) -> dict[str, Callable[..., Reply]]:
        """Its own and OpenAI's chat."""
        return {"/generate": held(generate_shape), "/v1/chat/completions": held(sglang_chat_shape)}

    def models(self, request: Request) -> Reply:
        """Its ``root`` is the served name."""
        model = {
            "id": self.served_name,
            "object": "model",
            "owned_by": "sglang",
            "root": self.served_name,
            "parent": None,
            "max_model_len": self.context_length,
        }
        return Reply({"object": "list", "data": [model]})

    def server_info(self, request: Request) -> Reply:
        """The fields that matter here."""
        return Reply(
            {
                "dp_size": 1,
                "max_running_requests": None,
                "max_total_num_tokens": 65536,
                "internal_states": [{"effective_max_running_requests_per_dp": 4096}],
                "enable_deterministic_inference": False,
                "grammar_backend": self.grammar_backend,
                "version": "0.5.23",
            }
        )

    def refusal(self, path: str, body: Mapping[str, Any]) -> Reply | None:
        """An unknown sampling parameter is a 400; an unknown model is none."""
        unknown = [name for name in body.get("sampling_params", {}) if name not in SGLANG_SAMPLING.split()]
        if path == "/generate" and unknown:
            return Reply({"error": f"unknown field `{unknown[0]}`, expected one of `max_new_tokens`, `stop`"}, 400)
        wrong = fault(schema_of(body))
        if wrong:
            message = f'Failed to compile json grammar: json_schema_converter.cc:4175: Unsupported type "{wrong}"\n'
            return Reply(self.error(path, 400, message), 400)
        return None

    def error(self, path: str, status: int, message: str) -> Any:
        """Flat for OpenAI's paths, nested for its own."""
        if path == "/generate":
            return {"error": {"message": message}}
        return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": status}


class Hosted(Standin):
    """An API that knows OpenAI's fields and refuses every other one, as OpenAI's own does."""

    known = frozenset(OPENAI_CHAT.split())
    limit_names = frozenset({"max_tokens"})
    served = ("gpt-x", "gpt-y")

    def pages(self) -> dict[str, Callable[[Request], Reply | None]]:
        """The list of models."""
        return {"/v1/models": self.models}

    def forms(self) -> dict[str, Callable[..., Reply]]:
        """Chat alone."""
        return {"/v1/chat/completions": held(hosted_chat_shape)}

    def models(self, request: Request) -> Reply:
        """Several, of nobody that is known here."""
        return Reply({"object": "list", "data": [{"id": name, "owned_by": "system"} for name in self.served]})

    def refusal(self, path: str, body: Mapping[str, Any]) -> Reply | None:
        """An unknown field, or the wrong name for the limit."""
        for name in body:
            if name in {"max_tokens", "max_completion_tokens"} - self.limit_names:
                other = next(iter(self.limit_names))
                message = f"Unsupported parameter: '{name}' is not supported with this model. Use '{other}' instead."
                return Reply(self.error(path, 400, message), 400)
            if name not in self.known | self.limit_names:
                return Reply(self.error(path, 400, f"Unrecognized request argument supplied: {name}"), 400)
        return None

    def error(self, path: str, status: int, message: str) -> Any:
        """OpenAI's."""
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def _usage(job: Job, ids: Sequence[int]) -> dict[str, int]:
    prompt = len(job.body.get("prompt") or job.server.tokenizer.encode(job.prompt))
    return {"prompt_tokens": prompt, "completion_tokens": len(ids), "total_tokens": prompt + len(ids)}


def completion_shape(job: Job, text: str | None, ids: list[int], reason: Mapping[str, Any]) -> Reply:
    """vLLM's ``/v1/completions`` with ``return_token_ids``."""
    matched = reason.get("matched")
    choice = {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": reason["type"],
        "stop_reason": matched if isinstance(matched, str) else None,
    }
    if job.body.get("logprobs") is not None:
        choice["logprobs"] = {"token_logprobs": [-0.5] * len(ids), "tokens": ["x"] * len(ids)}
    if job.body.get("return_token_ids"):
        choice |= {"token_ids": ids, "prompt_token_ids": job.body["prompt"]}
    return Reply({"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": _usage(job, ids)})


def vllm_chat_shape(job: Job, text: str | None, ids: list[int], reason: Mapping[str, Any]) -> Reply:
    """vLLM's chat with ``return_token_ids``."""
    choice = _chat_choice(text, reason) | {"stop_reason": None, "token_ids": ids}
    body = _chat(job, choice, ids)
    return Reply(body | {"prompt_token_ids": job.server.tokenizer.encode(job.prompt)})


def sglang_chat_shape(job: Job, text: str | None, ids: list[int], reason: Mapping[str, Any]) -> Reply:
    """SGLang's chat: both lists of ids stand in the choice."""
    choice = _chat_choice(text, reason) | {"matched_stop": reason.get("matched")}
    choice |= {"prompt_token_ids": job.server.tokenizer.encode(job.prompt), "response_token_ids": ids}
    return Reply(_chat(job, choice, ids))


def hosted_chat_shape(job: Job, text: str | None, ids: list[int], reason: Mapping[str, Any]) -> Reply:
    """OpenAI's chat: text and counts."""
    return Reply(_chat(job, _chat_choice(text, reason), ids))


def _chat_choice(text: str | None, reason: Mapping[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": reason["type"]}


def _chat(job: Job, choice: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": int(time.time())}
    return head | {"model": job.body.get("model"), "choices": [choice], "usage": _usage(job, ids)}


def main(kind: str, argv: Sequence[str]) -> None:
    """The program."""
    options = _parser(kind).parse_args(argv)
    script: dict[str, Any] = json.loads(os.environ.get("STANDIN", "{}"))
    print(f"INFO Starting to load model {getattr(options, 'model', None) or options.model_path}...", flush=True)
    if "crash" in script:
        print(script["crash"], file=sys.stderr, flush=True)
        sys.exit(1)
    asyncio.run(_serve(kind, options, script))


def _parser(kind: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="api_server.py" if kind == "vllm" else "launch_server.py", allow_abbrev=False)
    for flag in (VLLM_FLAGS if kind == "vllm" else SGLANG_FLAGS).split():
        if flag.endswith("!"):
            parser.add_argument(f"--{flag[:-1]}", action="store_true")
        else:
            parser.add_argument(f"--{flag}")
    return parser


async def _serve(kind: str, options: argparse.Namespace, script: Mapping[str, Any]) -> None:
    start_s = float(script.get("start_s", 0.0))
    if kind == "vllm":  # its port opens when it is ready; SGLang's opens early and answers 503
        await asyncio.sleep(start_s)
    made: type[Standin] = type("Program", (VLLM if kind == "vllm" else SGLang,), {"die": _die})
    key = os.environ.get("VLLM_API_KEY") if kind == "vllm" else options.api_key
    server = made(
        latency_s=float(script.get("latency_s", 0.0)),
        token_s=float(script.get("token_s", 0.0)),
        answers=script.get("answers"),
        faults=rules_from(script.get("faults", [])),
        token=key or "",
        die_after=script.get("die_after"),
        ready_after_s=start_s if kind == "sglang" else 0.0,
        context_length=int(getattr(options, "max_model_len", None) or 2048),
        tokenizer=_tokenizer(options),
    )
    server.served_name = options.served_model_name  # type: ignore[attr-defined]
    print("INFO Capturing CUDA graphs" if kind == "vllm" else "Capture cuda graph begin.", flush=True)
    await server.listen(options.host, int(options.port))
    await asyncio.Event().wait()


def _die(self: Standin) -> None:
    print("EngineDeadError: EngineCore encountered an issue", file=sys.stderr, flush=True)
    os._exit(1)


def _tokenizer(options: argparse.Namespace) -> Any:
    import tokenizers

    from standin.server import Loaded

    file = Path(getattr(options, "model", None) or options.model_path) / "tokenizer.json"
    return Loaded(tokenizers.Tokenizer.from_file(str(file))) if file.exists() else None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
