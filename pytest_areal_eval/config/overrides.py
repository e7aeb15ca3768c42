"""Overrides of a configuration with Hydra's meaning: ``k=v`` changes, ``+k=v`` adds, ``++k=v`` either, ``~k`` removes.

They act on plain dicts and lists in which references are still text, before anything is resolved.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pytest_areal_eval.config.value import parse_value
from pytest_areal_eval.errors import ConfigError

Tree = dict[str, Any]
REFERENCE = re.compile(r"\$\{([\w.\-]+)\}")
_FORM = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=\s]+)(?P<equals>=)?(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Override:
    """One override.

    Attributes:
        text: as it was typed.
        sign: ``""``, ``"+"``, ``"++"`` or ``"~"``.
        key: the path, ``a.b.0.c``.
        value: what it stands for; None for a removal without a value.
        has_value: whether there is one.
    """

    text: str
    sign: Literal["", "+", "++", "~"]
    key: str
    value: Any = None
    has_value: bool = True


def parse_override(text: str) -> Override:
    """Read an override.

    Raises:
        ConfigError: it has no key, or lacks its value.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None or not all(match["key"].split(".")):
        raise ConfigError(f"{text}: no override", "Write KEY=VALUE, +KEY=VALUE, ++KEY=VALUE or ~KEY.")
    sign: Any = match["sign"] or ""
    key, equals = match["key"], match["equals"]
    if "[" in key:
        right = re.sub(r"\[(\d+)\]", r".\1", key)
        raise ConfigError(f"{text}: an index is written with a dot", f"Write {sign}{right}={match['value']}")
    if not equals and (sign != "~" or match["value"]):
        raise ConfigError(f"{text}: no value", f"Write {sign}{key}=VALUE, or ~{key} to remove it.")
    try:
        value = parse_value(match["value"]) if equals else None
    except ConfigError as error:
        raise ConfigError(f"{text}: {error.args[0]}", error.hint) from None
    return Override(text.strip(), sign, key, value, bool(equals))


def apply(override: Override, tree: Tree, known: Iterable[str] = ()) -> None:
    """Change ``tree`` in place.

    Args:
        override: what to do.
        tree: the configuration.
        known: keys that may be added.

    Raises:
        ConfigError: the key does not exist, or exists already; the message names the nearest one.
    """
    *parents, last = override.key.split(".")
    holder: Any = tree
    for depth, part in enumerate(parents):
        if override.sign in ("+", "++") and isinstance(holder, dict) and holder.get(part) is None:
            holder[part] = {}
        holder = _child(holder, part, override, parents[:depth], tree, known)
    _refuse_reference(holder, override, parents)
    there = _has(holder, last)
    if override.sign == "~":
        _remove(holder, last, override, tree, known)
    elif override.sign == "+" and there:
        raise ConfigError(f"{override.text}: {override.key} exists already", f"Write +{override.text} to replace it.")
    elif not there and (override.sign == "" or not isinstance(holder, dict)):
        raise _missing(override, tree, known)
    elif isinstance(holder, list):
        holder[int(last)] = _merged(holder[int(last)], override.value)
    else:
        holder[last] = _merged(holder.get(last), override.value)


def keys_of(tree: Any, prefix: str = "") -> Iterator[str]:
    """Every path in a tree."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, child in pairs:
        yield f"{prefix}{name}"
        yield from keys_of(child, f"{prefix}{name}.")


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key most like this one."""
    names = list(dict.fromkeys(known))
    last = key.rpartition(".")[2]
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.7)
    return close[0] if close else next((name for name in names if name.rpartition(".")[2] == last), None)


def _child(holder: Any, part: str, override: Override, parents: list[str], tree: Tree, known: Iterable[str]) -> Any:
    _refuse_reference(holder, override, parents)
    if not _has(holder, part):
        raise _missing(override, tree, known)
    return holder[int(part)] if isinstance(holder, list) else holder[part]


def _has(holder: Any, part: str) -> bool:
    if isinstance(holder, list):
        return part.isdecimal() and len(part) < 10 and int(part) < len(holder)
    return isinstance(holder, dict) and part in holder


def _refuse_reference(holder: Any, override: Override, parents: list[str]) -> None:
    match = REFERENCE.fullmatch(holder) if isinstance(holder, str) else None
    if match is not None:
        here = ".".join(parents)
        there = match[1] + override.key.removeprefix(here)
        raise ConfigError(
            f"{override.text}: {here} is a reference to {match[1]}",
            f"Set {there}, which both of them see, or replace {here} as a whole.",
        )


def _remove(holder: Any, last: str, override: Override, tree: Tree, known: Iterable[str]) -> None:
    if not _has(holder, last):
        raise _missing(override, tree, known)
    index: Any = int(last) if isinstance(holder, list) else last
    if override.has_value and holder[index] != override.value:
        raise ConfigError(f"{override.text}: {override.key} is {holder[index]!r}", f"Write ~{override.key}.")
    del holder[index]


def _missing(override: Override, tree: Tree, known: Iterable[str]) -> ConfigError:
    addable = set(known)
    if override.sign == "" and override.key in addable:
        return ConfigError(f"{override.text}: the file has no {override.key}", f"To add it, write +{override.text}")
    close = nearest(override.key, [*keys_of(tree), *addable])
    return ConfigError(
        f"{override.text}: there is no {override.key}",
        f"Did you mean {close}?" if close else "areal-eval config FILE lists the keys that an evaluation reads.",
    )


def _merged(old: Any, new: Any) -> Any:
    """A mapping goes into a mapping; anything else replaces what was there."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
