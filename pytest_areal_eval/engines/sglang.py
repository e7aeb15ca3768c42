"""SGLang: a server of its own, ids in and ids out through ``/generate``.

``--backend=sglang:d4t2``.  Nothing of SGLang is imported; its command runs in whatever environment has it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, Gang, Launch, TransientError, describe
from pytest_areal_eval.engines.flags import as_flags, merge
from pytest_areal_eval.engines.http import get_json
from pytest_areal_eval.engines.installed import Wanted
from pytest_areal_eval.engines.server import START_TIMEOUT_S, ServerSpec, recommended
from pytest_areal_eval.engines.wire import (
    abort_request,
    chat_body,
    exchange,
    generate_body,
    parse_chat,
    parse_generate,
    refuse_beam_search,
)

if TYPE_CHECKING:
    import aiohttp

WANTED = Wanted(
    module="sglang",
    distributions=("sglang",),
    minimum="0.5.10",
    why="AReaL's own minimum",
    how="pip install 'sglang[all]'",
)
MAX_RUNNING = 256
DEFAULTS = {
    # AReaL's, except what hurts evaluation: radix cache, chunked prefill and CUDA graphs stay on, dtype and context
    # length are the checkpoint's, the attention backend the engine's.
    "mem_fraction_static": 0.9,
    "schedule_policy": "lpm",
    "enable_metrics": True,
    # Its log tells how the start proceeds; a line for each request would be too many.
    "log_level": "info",
    "log_level_http": "warning",
    # The checkpoint's stop tokens still count; its sampling defaults do not.
    "sampling_defaults": "openai",
}
CPU_DEFAULTS = {"dtype": "float32", "mem_fraction_static": 0.2, "max_total_tokens": 65536}
"""On a CPU: float32 as the embedded engine, and no half of the machine's memory."""
ENV = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}
"""Log-probabilities before temperature, as every other engine gives them."""
CPU_ENV = {"SGLANG_USE_CPU_ENGINE": "1"}
START = """\
import os, runpy, sys
sys.argv[1:1] = ["--api-key", os.environ.pop("AREAL_EVAL_TOKEN")]
runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)"""
"""``python -m sglang.launch_server`` takes its key from argv alone, where ``ps`` shows it to everybody."""
GANG = Gang(("--nnodes", "{nnodes}", "--node-rank", "{rank}", "--dist-init-addr", "{master_addr}:{master_port}"))
STAGES = (
    ("Load weight begin|Loading safetensors", "loads the weights"),
    ("Load weight end", "has its weights"),
    ("KV Cache is allocated", "has its KV cache"),
    ("Capture (cuda|cpu) graph begin", "captures graphs"),
    ("Capture (cuda|cpu) graph end", "has its graphs"),
    ("Uvicorn running", "warms up"),
)


class SGLangEngine:
    """One SGLang server a replica.

    Args:
        spec: what to start.
    """

    name = "sglang"

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.replicas = spec.allocation.data_parallel_size
        on_cpu: dict[str, Any] = CPU_DEFAULTS if spec.gpus == 0 else {}
        self.settings = merge(DEFAULTS, on_cpu, self._own(), spec.args)
        self.info = EngineInfo(concurrency=MAX_RUNNING, model=spec.served_name)

    def launch(self, name: str, token: str) -> Launch:
        """The server's command.  With a command of the user's own no token is asked for."""
        spec = self.spec
        head = spec.command or (spec.python, "-c", START)
        argv = (*head, "--model-path", spec.model, "--host", "{host}", "--port", "{port}", *as_flags(self.settings))
        env = ENV | {"AREAL_EVAL_TOKEN": token}
        if spec.gpus == 0:
            env |= {key: value for key, value in CPU_ENV.items() if key not in os.environ}
        return Launch(argv, env=env, gpus=spec.gpus, start_timeout_s=START_TIMEOUT_S, stages=STAGES, gang=GANG)

    async def discover(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> EngineInfo:
        """Read ``/v1/models`` and ``/server_info``; kept in ``info`` as well."""
        models = await get_json(http, endpoint, "/v1/models")
        server = await get_json(http, endpoint, "/server_info")
        try:
            found = {model["id"]: model.get("max_model_len") for model in models["data"]}
            context_length = found[self.spec.served_name]
            concurrency = _concurrency(server, context_length)
        except (KeyError, TypeError, ValueError) as e:
            raise TransientError(f"{endpoint.name}: unexpected bodies {describe(models)}, {describe(server)}") from e
        seeded = bool(server.get("enable_deterministic_inference"))
        note = "" if seeded else "SGLang ignores seeds unless --engine-arg=enable-deterministic-inference is given"
        self.info = EngineInfo(context_length, concurrency, self.spec.served_name, note=note)
        return self.info

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """Generate once.  Log-probabilities (before temperature) come back where ``metadata["logprobs"]`` is true.

        Raises:
            TransientError: it may succeed elsewhere or later.
            RequestError: it never will.
            PromptTooLong: the prompt fills the context.
        """
        refuse_beam_search(request, self.name)
        if request.messages is not None:
            body = chat_body(request, self.info) | {"rid": request.rid}
            return await exchange(http, endpoint, "/v1/chat/completions", request, body, parse_chat)
        return await exchange(http, endpoint, "/generate", request, generate_body(request, self.info), parse_generate)

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """Free the request's place; SGLang also frees it by itself when it sees the connection close."""
        if endpoint is not None:
            await abort_request(http, endpoint, request)

    def _own(self) -> dict[str, Any]:
        spec = self.spec
        pp_size = spec.allocation.pp_size
        return {
            "served_model_name": spec.served_name,
            "random_seed": spec.seed,
            "tp_size": spec.allocation.tp_size,
            "pp_size": pp_size if pp_size > 1 else None,
            "trust_remote_code": spec.trust_remote_code,
        }


def _concurrency(server: Any, context_length: int | None) -> int:
    """From ``/server_info``: how many requests run at once, and how many the KV cache holds, over its dp ranks."""
    states = server.get("internal_states") or [{}]
    most = states[0].get("effective_max_running_requests_per_dp") or server.get("max_running_requests") or MAX_RUNNING
    each = recommended(int(server["max_total_num_tokens"]), min(int(most), MAX_RUNNING), context_length)
    return each * int(server.get("dp_size") or 1)
