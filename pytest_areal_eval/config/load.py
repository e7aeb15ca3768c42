"""From an AReaL YAML file and overrides to a :class:`Config` that knows where each value came from.

Invariant: only what an evaluation reads is resolved and checked, so a training section can break nothing; nothing is
written to disk and nothing else is touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pytest_areal_eval.config.overrides import Override, apply, keys_of, nearest, parse_override
from pytest_areal_eval.config.schema import IGNORED, OWN_MODEL, Config, Origin, Sections
from pytest_areal_eval.config.sections import Reader, is_class
from pytest_areal_eval.config.source import read_yaml
from pytest_areal_eval.errors import ConfigError


def load_config(
    path: str | Path, overrides: Sequence[str] = (), *, name: str = "", label: str = "", model: str = ""
) -> Config:
    """Read a configuration.

    Args:
        path: AReaL's YAML file.
        overrides: ``k=v``, ``+k=v``, ``++k=v``, ``~k``, with Hydra's meaning.
        name: what messages call the file; default: its path.
        label: what stands before an override in messages, such as ``--set``.
        model: what is evaluated in the place of ``actor.path``, which then may refer to what is not there.

    Raises:
        ConfigError: the file cannot be read, an override names nothing, a reference leads nowhere or round in a circle,
            or a value has the wrong type; the message names the file and line, or the override.
    """
    tree, places = read_yaml(Path(path), name or str(path))
    origins = {key: Origin(place) for key, place in places.items()}
    for text in overrides:
        try:
            override = parse_override(text)
            _refuse_unknown(override)
            apply(override, tree, known_keys())
        except ConfigError as error:
            raise ConfigError(f"{label} {error.args[0]}".strip(), error.hint) from None
        _note(override, origins, f"{label} {override.text}".strip())
    actor = tree.get("actor")
    if model and isinstance(actor, dict) and "${" in str(actor.get("path")):
        actor["path"], origins["actor.path"] = model, OWN_MODEL
    return Reader(tree, origins).read()


def known_keys(cls: type = Sections, prefix: str = "") -> Iterator[str]:
    """Every key that an evaluation reads; a list's by its first index."""
    for name, kind in get_type_hints(cls).items():
        yield f"{prefix}{name}"
        for part in (kind, *get_args(kind)):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                yield from known_keys(part, f"{prefix}{name}." + ("0." if part is not kind else ""))


def _refuse_unknown(override: Override) -> None:
    """Adding a key that nobody reads is a slip of the pen, as it is in AReaL."""
    if override.sign not in ("+", "++"):
        return
    known, problem = list(known_keys()), _unknown_part(override.key)
    if problem is not None:
        close = nearest(override.key, known)
        hint = f"Did you mean {close}?" if close else "areal-eval config FILE lists the keys that an evaluation reads."
        raise ConfigError(f"{override.text}: there is no {problem}", hint)


def _unknown_part(key: str) -> str | None:
    """The first part of a key that no section has; None where all is known, passed over, or free."""
    kind: Any = Sections
    section: list[str] = []
    for part in key.split("."):
        if part.isdecimal():
            continue
        here = ".".join(section)
        if not is_class(kind) or part in IGNORED.get(here, ()) or here == "actor":
            return None
        hints = get_type_hints(kind)
        if part not in hints:
            return f"{here}.{part}".lstrip(".")
        kind = hints[part]
        kind = next((inner for inner in get_args(kind) if is_class(inner)), kind)
        section.append(part)
    return None


def _note(override: Override, origins: dict[str, Origin], place: str) -> None:
    """An override's key and all below it come from the override now."""
    below = override.key + "."
    if override.sign == "~":
        gone = [key for key in origins if key == override.key or key.startswith(below)]
        for key in gone:
            del origins[key]
        return
    if not isinstance(override.value, dict):
        for key in [key for key in origins if key.startswith(below)]:
            del origins[key]
    for key in [override.key, *(below + key for key in keys_of(override.value))]:
        origins[key] = Origin(place, typed=True)
    parts = override.key.split(".")
    for depth in range(1, len(parts)):  # parents that the override made
        origins.setdefault(".".join(parts[:depth]), Origin(place, typed=True))
