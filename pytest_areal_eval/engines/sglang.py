"""SGLang: a server of its own, ids in and ids out through ``/generate``.

``--backend=sglang:d4t2``.  Nothing of SGLang is imported; its command runs in whatever environment has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.engines.answers import parse_chat
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, Gang, Launch
from pytest_areal_eval.engines.http import MALFORMED, get_json, post_json, unexpected
from pytest_areal_eval.engines.installed import Wanted
from pytest_areal_eval.engines.pictures import PICTURED_GENERATE
from pytest_areal_eval.engines.server import Program, ServerSpec, context_of, recommended
from pytest_areal_eval.engines.wire import CHAT, GENERATE, Form, abort_request, ask, chat_body

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
UNSEEDED = "SGLang ignores seeds unless --engine-arg=enable-deterministic-inference is given"
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
sys.argv.insert(1, "--api-key=" + os.environ.pop("AREAL_EVAL_TOKEN"))
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


PROGRAM = Program(defaults=DEFAULTS, on_cpu=CPU_DEFAULTS, env=ENV, env_on_cpu=CPU_ENV, stages=STAGES, gang=GANG)
CHAT_BY_RID = Form(CHAT.path, lambda request, info: chat_body(request, info) | {"rid": request.rid}, parse_chat)


class SGLangEngine:
    """One SGLang server a replica.

    Args:
        spec: what to start.
    """

    name = "sglang"

    def __init__(self, spec: ServerSpec) -> None:
        self.spec, self.model, self.replicas = spec, spec.model, spec.allocation.data_parallel_size
        self.settings = PROGRAM.settings(spec, self._own())
        self.info = EngineInfo(concurrency=MAX_RUNNING, model=spec.served_name)

    def launch(self, name: str, token: str) -> Launch:
        """The server's command.  With a command of the user's own no token is asked for."""
        head = self.spec.command or (self.spec.python, "-c", START)
        env = {"AREAL_EVAL_TOKEN": token}
        launch = PROGRAM.launch(self.spec, (*head, "--model-path", self.model), self.settings, env)
        typed = self.spec.command or (self.spec.python, "-m", "sglang.launch_server")
        return replace(launch, typed=(*typed, *launch.argv[len(head) :]))

    async def discover(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> EngineInfo:
        """Read ``/v1/models`` and ``/server_info``; kept in ``info`` as well."""
        models = await get_json(http, endpoint, "/v1/models")
        server = await get_json(http, endpoint, "/server_info")
        try:
            context_length = context_of(models, self.spec.served_name)
            concurrency = _concurrency(server, context_length)
            note = "" if server.get("enable_deterministic_inference") else UNSEEDED
            schemas = server.get("grammar_backend") not in (None, "none")
            name = self.spec.served_name
            self.info = EngineInfo(context_length, concurrency, name, sampling_note=note, schemas=schemas)
        except MALFORMED as e:
            raise unexpected(f"{endpoint.name} GET /v1/models, /server_info", [models, server], e) from e
        return self.info

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """Generate once; see :func:`~pytest_areal_eval.engines.wire.ask`.

        Log-probabilities (before temperature) come back where ``metadata["logprobs"]`` is true.
        """
        return await ask(self, request, endpoint, http, ids=GENERATE, chat=CHAT_BY_RID, pictures=PICTURED_GENERATE)

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """Free the request's place; SGLang also frees it by itself when it sees the connection close."""
        if endpoint is not None:
            await abort_request(http, endpoint, request)

    async def reload(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        """``/update_weights_from_disk``, which also empties the radix cache."""
        await post_json(http, endpoint, "/update_weights_from_disk", {"model_path": self.model})

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
