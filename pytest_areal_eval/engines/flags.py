"""From settings to a server's command line.

Keys are AReaL's (``max_num_seqs``) or the server's own flags (``max-num-seqs``); both spell the same setting, and
``no_X: true`` takes back ``X``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_areal_eval.errors import ConfigError

CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


def as_flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """``{"tp_size": 2, "enable_metrics": True, "seed": None}`` as ``--tp-size 2 --enable-metrics``.

    None, False and nothing (``""``, ``[]``) leave the flag out, True is a bare flag, a list is the flag with its
    values, a mapping is JSON.
    """
    flags: list[str] = []
    for key, value in settings.items():
        if value is None or value is False or (value in ("", [], ()) and value != 0):
            continue
        head, dot, field = key.partition(".")  # a setting's own field, as vLLM has it, is spelt as it is there
        flags.append("--" + head.replace("_", "-") + dot + field)
        if value is True:
            continue
        if isinstance(value, list | tuple):
            flags.extend(str(v) for v in value)
        else:
            flags.append(json.dumps(value) if isinstance(value, Mapping) else str(value))
    return tuple(flags)


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win.  ``enable_x: false`` over a default ``enable_x: true`` becomes ``no_enable_x``, since a server
    may have it on by itself."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for raw, value in layer.items():
            key = raw.lstrip("-").replace("-", "_")
            opposite = key.removeprefix("no_") if key.startswith("no_") else f"no_{key}"
            merged.pop(opposite, None)
            if value is False and merged.get(key) is True and key.startswith("enable_"):
                del merged[key]
                key, value = f"no_{key}", True
            merged[key] = value
    return merged


def parse_engine_args(texts: Iterable[str]) -> dict[str, Any]:
    """``--engine-arg KEY=VALUE``; ``KEY`` alone is a bare flag.

    Raises:
        ConfigError: no key, or no value behind an ``=``.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().lstrip("-").replace("-", "_")
        if not name.replace(".", "_").isidentifier():
            raise ConfigError(f"--engine-arg={text}: no flag's name", "Write KEY=VALUE, such as max-num-seqs=64.")
        if equals and not value.strip():
            hint = f"{key}=null leaves the flag out."
            raise ConfigError(f"--engine-arg={text}: no value; is a shell variable unset?", hint)
        found[name] = CONSTANTS.get(value.lower(), value) if equals else True
    return found
