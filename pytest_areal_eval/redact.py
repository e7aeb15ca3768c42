"""Keep secrets out of what is written down or shown: by the name that a value goes by, and by its shape.

Invariant: what comes out is plain JSON (finite numbers, strings, lists, dicts with string keys).  The names err on the
side of hiding; ``max_new_tokens`` and ``pad_token`` are no secrets.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

MASK = "***"

_SECRET_WORD = re.compile("secrets?|passwords?|passwd|passphrase|credentials?|apikeys?|authorization|cookies?|bearer")
_SECRET_PAIR = re.compile("(api|access|private|secret|auth|bearer|refresh|signing|encryption) (key|token)s?")
_TOKEN_OF_TEXT = re.compile(
    "pad|eos|bos|unk|mask|sep|cls|special|stop|image|audio|video|vision|start|end|begin|eot|eom|think|thinking"
    "|next|first|last|per|prompt|output|input|new|max|min|boundary"
)


def redact(value: Any) -> Any:
    """``value`` as plain JSON with ``***`` in place of what looks like a secret.

    Hidden are values under a secret's name (``api_key``, ``HF_TOKEN``, ``--password``), in mappings, in
    ``name=value`` and ``name: value`` inside strings and after a flag in an argument list; and well-known shapes
    anywhere (``sk-…``, ``hf_…``, ``Bearer …``, ``https://user:password@…``).  Dataclasses, enums, paths and sets
    become plain; a function or class becomes its dotted name.
    """
    if isinstance(value, enum.Enum):
        return redact(value.value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return redact_text(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return redact({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {redact_text(str(key)): _redact_named(str(key), inner) for key, inner in value.items()}
    if isinstance(value, Set):
        return sorted((redact(inner) for inner in value), key=repr)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return _redact_list(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return redact_text(str(value))


def is_secret_name(name: str) -> bool:
    """Whether a key, flag or variable of this name holds a secret."""
    words = [word.lower() for word in re.findall(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]+", name)]
    if not words:
        return False
    if any(map(_SECRET_WORD.fullmatch, words)) or any(map(_SECRET_PAIR.fullmatch, map(" ".join, pairwise(words)))):
        return True
    if words[-1] == "token":
        return not any(map(_TOKEN_OF_TEXT.fullmatch, words))
    # OPENAI_KEY and db_pwd are secrets; answer_key and PWD are not.
    return len(words) > 1 and (words[-1] == "pwd" or (words[-1] == "key" and name.isupper()))


def redact_text(text: str) -> str:
    """A string with the secrets in it masked."""
    for shape in _SHAPES:
        text = shape.sub(MASK, text)
    text = _USER_INFO.sub(rf"\1{MASK}@", text)
    return _mask_named(_FLAG, _mask_named(_ASSIGNMENT, text))


_SHAPES = (
    re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bnvapi-[A-Za-z0-9_-]{16,}|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bAIza[A-Za-z0-9_-]{30,}"),
    re.compile(r"\bA(?:KI|SI)A[A-Z0-9]{16}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(r"(?<=[Bb]earer )[^\s\"',;*]{8,}"),
)
_USER_INFO = re.compile(r"(://)[^/\s@\"']+@")
# The name's start is anchored and its length bounded, and a value is read only after a secret's name, so that any
# string takes time linear in its length.
_ASSIGNMENT = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]{1,80})["']?\s*[=:]\s*""")
_FLAG = re.compile(r"(?<![\w.-])(?P<name>--[\w-]{1,80})\s+")
_VALUE = re.compile(r""""[^"]*"|'[^']*'|(?:[Bb]earer |[Bb]asic |[Tt]oken )?[^\s"',;&}\])]+""")


def _mask_named(name: re.Pattern[str], text: str) -> str:
    parts = []
    done = 0
    for match in name.finditer(text):
        secret = is_secret_name(match["name"].rpartition(".")[2])
        value = _VALUE.match(text, match.end()) if secret and match.end() >= done else None
        if value:
            quote = value[0][0] if value[0][0] in "\"'" else ""
            parts += [text[done : match.end()], quote, MASK, quote]
            done = value.end()
    return "".join(parts) + text[done:]


def _redact_named(name: str, value: Any) -> Any:
    hidden = is_secret_name(name) and value not in (None, "") and not isinstance(value, bool)
    return MASK if hidden else redact(value)


def _redact_list(values: Sequence[Any]) -> list[Any]:
    plain = []
    flag = False
    for value in values:
        plain.append(MASK if flag and isinstance(value, str) and not value.startswith("--") else redact(value))
        flag = isinstance(value, str) and value.startswith("-") and "=" not in value and is_secret_name(value)
    return plain
