"""A configuration as text: each value that an evaluation reads, and where it came from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from pytest_areal_eval.config.schema import Config, Sections


def config_rows(config: Config) -> list[tuple[str, str, str]]:
    """``(key, value, origin)`` of everything that an evaluation reads; a value that nobody gave is AReaL's default."""
    found = []
    for entry in dataclasses.fields(Sections):
        for key, value in _leaves(entry.name, getattr(config, entry.name)):
            origin = config.origins.get(key)
            found.append((key, json.dumps(value, ensure_ascii=False), str(origin) if origin else "default"))
    return found


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        for entry in dataclasses.fields(value):
            yield from _leaves(f"{key}.{entry.name}", getattr(value, entry.name))
    elif isinstance(value, dict) and value:
        for name, child in value.items():
            yield f"{key}.{name}", child
    elif isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
        for index, child in enumerate(value):
            yield from _leaves(f"{key}.{index}", child)
    else:
        yield key, value
