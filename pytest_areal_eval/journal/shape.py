"""Whether a ``run.json`` has the shape that its readers rely on: what was edited by hand is told, and no traceback.

Everything is optional, since a run may have been killed at any time or written by an older version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NUMBERS = ("n_samples", "n_selected", "n_planned", "n_total", "pass_mark")
_OBJECTS = ("dataset", "sampling", "template", "identity", "summary")
_GATE = ("evaluation", "gate", "outcome", "message")


def fault(info: Mapping[str, Any]) -> str:
    """The first thing that is not as it should be, as ``KEY is no KIND``; nothing where all is well."""
    return next(_faults(info), "")


def _faults(info: Mapping[str, Any]) -> Iterator[str]:
    for key in ("evaluations", "models"):
        yield from _objects(info, key)
    yield from _is(info.get("settings", {}), dict, "settings", "object")
    for key in ("given", "ini", "yaml") if isinstance(info.get("settings"), dict) else ():
        yield from _is(info["settings"].get(key, {}), dict, f"settings.{key}", "object")
    for name in ("started_at", "finished_at", "wall_s"):
        yield from _is(info.get(name, 0), int | float, name, "number")
    for name, described in _items(info.get("evaluations")):
        where = f"evaluations.{name}"
        for key in _NUMBERS:
            yield from _is(described.get(key, 0), int | float, f"{where}.{key}", "number")
        for key in _OBJECTS:
            yield from _is(described.get(key) or {}, dict, f"{where}.{key}", "object")
        yield from _texts(described.get("gates", []), f"{where}.gates")
        yield from _summary(described.get("summary") or {}, f"{where}.summary")
    gates = info.get("gates", [])
    yield from _is(gates, list, "gates", "list")
    for number, gate in enumerate(gates if isinstance(gates, list) else []):
        complete = isinstance(gate, dict) and all(isinstance(gate.get(key), str) for key in _GATE)
        if not complete:
            yield f"gates[{number}] lacks one of {', '.join(_GATE)}"


def _summary(summary: Mapping[str, Any], where: str) -> Iterator[str]:
    for key in ("n_items", "n_samples") if isinstance(summary, dict) and summary else ():
        yield from _is(summary.get(key), int, f"{where}.{key}", "number")
    headline = summary.get("headline") if isinstance(summary, dict) else None
    if headline is not None:
        complete = isinstance(headline, dict) and isinstance(headline.get("value"), int | float) and "se" in headline
        yield from [] if complete else [f"{where}.headline is no estimate"]


def _objects(info: Mapping[str, Any], key: str) -> Iterator[str]:
    yield from _is(info.get(key, {}), dict, key, "object")
    for name, value in info[key].items() if isinstance(info.get(key), dict) else ():
        yield from _is(value, dict, f"{key}.{name}", "object")


def _items(value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    return [(k, v) for k, v in value.items() if isinstance(v, dict)] if isinstance(value, dict) else []


def _texts(value: Any, where: str) -> Iterator[str]:
    yield from _is(value, list, where, "list")
    if isinstance(value, list) and not all(isinstance(text, str) for text in value):
        yield f"{where} holds something that is no text"


def _is(value: Any, kind: Any, where: str, what: str) -> Iterator[str]:
    if not isinstance(value, kind) or isinstance(value, bool):
        yield f"{where} is no {what}"
