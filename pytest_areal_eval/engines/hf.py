"""The embedded engine: transformers in a server process of our own, for a machine without vLLM or SGLang.

``--backend=hf``.  The server (:mod:`pytest_areal_eval.engines.hf_server`) batches continuously and speaks SGLang's
``/generate``; this side builds its command and speaks its HTTP.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, Launch
from pytest_areal_eval.engines.http import MALFORMED, get_json, post_json, unexpected
from pytest_areal_eval.engines.wire import CHAT, GENERATE, Form, abort_request, ask, chat_body

if TYPE_CHECKING:
    import aiohttp


def _chat_body(request: ModelRequest, info: EngineInfo) -> dict[str, Any]:
    return chat_body(request, info) | {"model": None}  # it serves one, whose name changes when it loads another


CHAT_WITH_THE_ONE = Form(CHAT.path, _chat_body, CHAT.parse)


class HFEngine:
    """Any causal language model of transformers.

    Args:
        model: checkpoint directory or hub name.
        served_name: the model's name in requests.
        replicas: server processes.
        dtype: ``auto`` is float32 on a CPU and the checkpoint's own on a GPU; else ``float32``, ``bfloat16``,
            ``float16``.
        context_length: prompt and answer together, in tokens; None for the checkpoint's own.
        max_batch: sequences that one replica runs at once.
        trust_remote_code: run the checkpoint's own code.
        python: the interpreter that runs the server.
        gpus: GPUs of one replica, 0 or 1.
        threads: CPU threads of one replica; None lets the server choose.
        tokenizer: directory or hub name of the tokenizer; None: the checkpoint's own.
    """

    name = "hf"

    def __init__(
        self,
        model: str,
        *,
        served_name: str = "default",
        replicas: int = 1,
        dtype: str = "auto",
        context_length: int | None = None,
        max_batch: int = 32,
        trust_remote_code: bool = False,
        python: str = sys.executable,
        gpus: int = 0,
        threads: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self.model, self.served_name, self.replicas, self.dtype = model, served_name, replicas, dtype
        self.context_length, self.max_batch = context_length, max_batch
        self.trust_remote_code, self.python = trust_remote_code, python
        self.gpus, self.threads, self.tokenizer = gpus, threads, tokenizer
        self.info = EngineInfo(context_length=context_length, concurrency=max_batch, model=served_name)

    def launch(self, name: str, token: str) -> Launch:
        """The server's command; the token goes into its environment, out of sight of ``ps``."""
        argv = [self.python, "-P", "-m", "pytest_areal_eval.engines.hf_server", "--model", self.model]
        argv += ["--served-model-name", self.served_name]
        argv += ["--host", "{host}", "--port", "{port}", "--nonce", "{nonce}"]
        argv += ["--dtype", self.dtype, "--max-batch", str(self.max_batch)]
        if self.context_length is not None:
            argv += ["--context-length", str(self.context_length)]
        if self.threads is not None:
            argv += ["--threads", str(self.threads)]
        if self.tokenizer is not None:
            argv += ["--tokenizer", self.tokenizer]
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
        except MALFORMED as e:
            raise unexpected(f"{endpoint.name} GET /model_info", body, e) from e
        return self.info

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """Generate once; see :func:`~pytest_areal_eval.engines.wire.ask`.

        Log-probabilities come back where ``request.metadata["logprobs"]`` is true.
        """
        return await ask(self, request, endpoint, http, ids=GENERATE, chat=CHAT_WITH_THE_ONE)

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """Free the request's row.  The server also frees it by itself when it sees the connection close."""
        if endpoint is not None:
            await abort_request(http, endpoint, request)

    async def reload(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        """``/update_weights_from_disk``, as SGLang has it."""
        await post_json(http, endpoint, "/update_weights_from_disk", {"model_path": self.model})
