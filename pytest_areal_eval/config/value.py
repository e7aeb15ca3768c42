"""The value of an override, as Hydra reads it, except that a word may hold ``=``, ``,``, brackets and spaces.

``1``, ``1e-8``, ``true``, ``null``, ``'quoted'``, ``[1, 2]``, ``{gpu: 2}``, ``${a.b}``; anything else is text.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from lark import Lark, Tree
from lark.exceptions import UnexpectedInput

from pytest_areal_eval.errors import ConfigError

_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?|[+-]?(inf|nan)", re.IGNORECASE)
_CONSTANTS = {"true": True, "false": False, "null": None}
_LONGEST_NUMBER = 300


def parse_value(text: str) -> Any:
    """The value that a text stands for.

    Raises:
        ConfigError: a list, a mapping or a quoted text that is not closed; with the column.
    """
    stripped = text.strip()
    if not stripped or stripped[0] not in "[{'\"":
        return _word(stripped)
    try:
        return _build(_parser().parse(stripped))
    except UnexpectedInput as error:
        position = getattr(error, "pos_in_stream", None)
        token = getattr(getattr(error, "token", None), "type", "")
        at = len(stripped) if token == "$END" or position is None or position < 0 else position
        found = repr(stripped[at]) if at < len(stripped) else "end"
        raise ConfigError(
            f"unexpected {found} at column {at + 1} of {stripped}",
            "A list is [a, b], a mapping {a: 1}; quote a text that begins with a bracket or a quote.",
        ) from None
    except RecursionError:
        raise ConfigError("the value has too many brackets") from None


@functools.cache
def _parser() -> Lark:
    return Lark(
        Path(__file__).with_name("value.lark").read_text(encoding="utf-8"), parser="lalr", maybe_placeholders=False
    )


def _build(tree: Tree[Any]) -> Any:
    kind, children = tree.data, tree.children
    if kind == "word":
        return _word(str(children[0]).strip())
    if kind == "quoted":
        return re.sub(r"\\([\\'\"])", r"\1", str(children[0])[1:-1])
    if kind == "list":
        return [_build(child) for child in children]
    pairs = (pair.children for pair in children)
    return {_key(key): _build(value[0]) if value else None for key, *value in pairs}


def _key(tree: Tree[Any]) -> str:
    child = tree.children[0]
    return str(child).strip() if isinstance(child, str) else str(_build(child))


def _word(text: str) -> Any:
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if len(text) <= _LONGEST_NUMBER and _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
