"""What can be wrong with the choice of an engine, found before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_areal_eval.backends.choice import attach_to, checkpoint_of, engine_args, hf_args, parse_backend
from pytest_areal_eval.checkpoint import Checkpoint
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.settings import Settings


def check_engine(settings: Settings) -> None:
    """Find the mistakes that need no engine to be found.

    Raises:
        UserError: no such checkpoint, an engine that is not installed or too old, options at odds with each other.
    """
    from pytest_areal_eval.engines.server import check_args

    allocation = parse_backend(settings)
    attach_to(settings)
    args = engine_args(settings)
    if allocation.backend == "hf":
        hf_args(args)
    else:
        check_args(allocation.backend, args)
    if settings.words("engine-cmd") and allocation.backend == "hf":
        raise ConfigError(
            "--engine-cmd: the embedded engine has a server of its own", "Leave it out, or give --backend."
        )
    _check_installed(settings, allocation.backend)
    for model in settings.get("model", []):
        checkpoint = checkpoint_of(settings, model)
        if checkpoint is not None:
            _check_length(settings, checkpoint)


def _check_installed(settings: Settings, name: str) -> None:
    from pytest_areal_eval.engines import installed, sglang, vllm

    wanted = {"vllm": vllm.WANTED, "sglang": sglang.WANTED}.get(name)
    brought = settings.get("engine-cmd") or settings.get("base-url") or settings.get("ray-runtime-env")
    python = settings.get("engine-python", sys.executable)
    if wanted is None or brought:
        return
    if settings.get("scheduler", "local") != "local" and not Path(python).exists():
        return  # it may be there on the nodes
    installed.require(wanted, python)


def _check_length(settings: Settings, checkpoint: Checkpoint) -> None:
    wanted, context = settings.get("max-new-tokens"), checkpoint.context_length
    if wanted is not None and context is not None and wanted >= context:
        raise ConfigError(
            f"--max-new-tokens={wanted}: {checkpoint.name} has a context of {context} tokens",
            f"Prompt and answer share it: ask for fewer than {context}.",
        )
