"""What vLLM and SGLang have in common as servers: what is asked of them, and what they say while they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_areal_eval.allocation import Allocation
from pytest_areal_eval.engines.base import Gang, Launch
from pytest_areal_eval.engines.flags import as_flags, merge
from pytest_areal_eval.engines.installed import OWN_PATH
from pytest_areal_eval.errors import ConfigError, RequestError

START_TIMEOUT_S = 1800.0
"""Large checkpoints on a network file system take many minutes; a server that dies is seen at once."""
TYPICAL_TOKENS = 1024
LEAST_CONCURRENCY = 16
OWNED: Mapping[str, Sequence[str]] = {
    "Where a server listens, and with which key, is decided for it; one that runs already takes --base-url.": (
        ("host", "port", "uds", "root_path", "api_key", "api_key_file", "nnodes", "node_rank", "headless")
    ),
    "Give --model.": ("model", "model_path", "served_model_name"),
    "Write it in --backend, dNtNpN: a replica's GPUs follow from it.": (
        ("tp", "tp_size", "tensor_parallel_size", "pp", "pp_size", "pipeline_parallel_size")
    ),
    "Give --trust-remote-code, which the tokenizer needs too.": ("trust_remote_code",),
    "Leave it out: stop strings and answers' text need the server's tokenizer.": ("skip_tokenizer_init",),
}
"""Settings that others here depend on, by what to do instead."""


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One replica's server.

    Attributes:
        model: checkpoint directory or hub name.
        served_name: the model's name in requests.
        allocation: replicas and how each is split over GPUs.
        gpus: GPUs of one replica; 0 runs it on the CPU.
        args: the server's settings on top of the engine's defaults; keys as AReaL's or as the server's flags.
        python: the interpreter of the environment that has the engine.
        command: replaces the command's head, up to the flags.
        trust_remote_code: run the checkpoint's own code.
        seed: the run's seed.
    """

    model: str
    served_name: str
    allocation: Allocation
    gpus: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    command: tuple[str, ...] = ()
    trust_remote_code: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Program:
    """An engine's server as a program.

    Attributes:
        defaults: its settings.
        on_cpu: further ones where it has no GPU.
        env: its environment.
        env_on_cpu: further variables where it has no GPU; the user's own win.
        stages: what the lines of its log mean.
        gang: how it runs on several nodes.
    """

    defaults: Mapping[str, Any]
    on_cpu: Mapping[str, Any]
    env: Mapping[str, str]
    env_on_cpu: Mapping[str, str]
    stages: tuple[tuple[str, str], ...]
    gang: Gang

    def settings(self, spec: ServerSpec, own: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults, below what the allocation asks for (``own``), below what the user gives."""
        return merge(self.defaults, self.on_cpu if spec.gpus == 0 else {}, own, spec.args)

    def launch(
        self, spec: ServerSpec, head: Sequence[str], settings: Mapping[str, Any], env: Mapping[str, str]
    ) -> Launch:
        """The command: ``head``, where it listens, and ``settings`` as flags."""
        argv = (*head, "--host", "{host}", "--port", "{port}", *as_flags(settings))
        on_cpu = {name: text for name, text in self.env_on_cpu.items() if spec.gpus == 0 and name not in os.environ}
        return Launch(
            argv,
            env={**self.env, **env, **on_cpu, **({} if spec.command else OWN_PATH)},
            gpus=spec.gpus,
            start_timeout_s=START_TIMEOUT_S,
            stages=self.stages,
            gang=self.gang,
        )


def check_args(engine: str, args: Mapping[str, Any]) -> None:
    """Refuse settings that would leave us with another server than the one that we speak to.

    Raises:
        ConfigError: one of ``OWNED``; says what to do instead.
    """
    for hint, names in OWNED.items():
        taken = next((name for name in merge(args) if name in names), None)
        if taken is not None:
            raise ConfigError(f"{engine}'s setting {taken.replace('_', '-')} follows from other options", hint)


def context_of(models: Any, name: str) -> int | None:
    """The context length that ``/v1/models`` gives for the model ``name``.

    Raises:
        RequestError: other models are served.
        KeyError, TypeError: a body of another form, or a length that is none.
    """
    found = {model["id"]: model.get("max_model_len") for model in models["data"]}
    if name not in found:
        raise RequestError(f"the server serves {', '.join(found) or 'no model'}, not {name}", hint="Give --model.")
    length = found[name]
    if length is not None and (type(length) is not int or length < 1):
        raise TypeError(f"no context length: {length!r}")
    return length


def recommended(kv_tokens: int, most: int, context_length: int | None) -> int:
    """Requests that a replica runs well at once: as many typical ones as its KV cache holds, within its own limit.

    A request that does not fit waits inside the server, so too many cost a little and too few cost speed.
    """
    each = min(context_length or TYPICAL_TOKENS, TYPICAL_TOKENS)
    return max(min(kv_tokens // each, most), min(LEAST_CONCURRENCY, most))
