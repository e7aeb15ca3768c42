"""The text of an allocation, read through ``grammar.lark`` into components that know their places.

Invariant: any text is either read or one :class:`AllocationSyntaxError` that shows the place and what was expected.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from pytest_areal_eval.errors import ConfigError

INFERENCE_BACKENDS = ("hf", "sglang", "vllm", "openai")
TRAINING_BACKENDS = ("fsdp", "megatron", "archon")
MOST_DIGITS = 6
SHOWN = 60
EXAMPLE = "Write BACKEND or BACKEND:dNtNpN, such as hf, hf:d2 or sglang:d4t2."
_WORDS: Mapping[str, str] = {
    "INFERENCE": "a backend",
    "TRAINING": "a backend",
    "NAME": "a name",
    "REPLICA_AXIS": "d, t or p",
    "AXIS": "d, t, p, c or e",
    "ATTENTION_AXIS": "d, t, p or c",
    "EXPERT_AXIS": "d, t, p or e",
    "SIZE": "a size",
    "PLUS": "'+'",
    "VBAR": "'|'",
    "LSQB": "'['",
    "RSQB": "']'",
    "LPAR": "'('",
    "RPAR": "')'",
    "COLON": "':'",
    "ATTN": "'attn'",
    "FFN": "'ffn'",
    "$END": "the end",
}


class AllocationValidationError(ConfigError, ValueError):
    """An allocation that can be read asks for something that cannot be."""


class InvalidAllocationModeError(AllocationValidationError):
    """The parts of an allocation contradict each other."""


class AllocationSyntaxError(AllocationValidationError):
    """The text is no allocation."""


@dataclass(frozen=True)
class Part:
    """One allocation as written.

    Attributes:
        backend: None in the forms that lack it.
        name: what stands in brackets.
        sizes: size of each axis that is given; the attention's in a hybrid.
        experts: the experts' sizes in a hybrid; None otherwise.
    """

    backend: str | None
    name: str | None
    sizes: Mapping[str, int]
    experts: Mapping[str, int] | None = None


def read(text: str) -> list[list[Part]]:
    """The components of an expression, each the list of its colocated parts.

    Raises:
        AllocationSyntaxError: with the column, and what was expected there.
    """
    if not text.strip():
        raise pointed(text, 0, "the allocation is empty")
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise _unexpected(text, error) from None
    return [[_part(text, part) for part in _trees(component)] for component in _trees(tree)]


def pointed(text: str, position: int, what: str, hint: str = EXAMPLE) -> AllocationSyntaxError:
    """An error that shows the place under an excerpt of the text."""
    start = max(0, position - SHOWN + 20)
    shown = "".join(c if c.isprintable() else " " for c in text[start : start + SHOWN])
    return AllocationSyntaxError(
        f"{excerpt(text)}: {what} at column {position + 1}\n  {shown}\n  {' ' * (position - start)}^", hint
    )


def excerpt(text: str) -> str:
    """A text for a message: on one line, and not too long."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


@functools.cache
def _parser() -> Lark:
    return Lark(Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8"), parser="lalr")


def _unexpected(text: str, error: UnexpectedInput) -> AllocationSyntaxError:
    position = getattr(error, "pos_in_stream", None)
    found = getattr(getattr(error, "token", None), "type", "")
    at = len(text.rstrip()) if position is None or position < 0 or found == "$END" else position
    word = re.match(r"\w+", text[at:])
    expected = _expected(error)
    if word and expected == ["a backend"]:
        close = difflib.get_close_matches(word[0], INFERENCE_BACKENDS, n=1)
        also = f", did you mean {close[0]!r}?" if close else ""
        what = f"no such engine {excerpt(word[0])!r}{also}"
        return pointed(text, at, what, f"There are: {', '.join(INFERENCE_BACKENDS)}.")
    unexpected = repr(text[at]) if at < len(text) else "end"
    return pointed(text, at, f"unexpected {unexpected}, expected {_either(expected)},")


def _expected(error: UnexpectedInput) -> list[str]:
    names: Iterable[str] = getattr(error, "accepts", None) or getattr(error, "allowed", None) or ()
    names = names or getattr(error, "expected", None) or ()
    words = {_WORDS.get(name, name) for name in names}
    return ["a backend"] if "a backend" in words else sorted(words, key=lambda word: (len(word) < 4, word))


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" or {words[-1]}"


def _part(text: str, tree: Tree[Token]) -> Part:
    backend = next((str(token) for token in _tokens(tree)), None)
    found = {part.data: part for part in _trees(tree)}
    name = str(found["name"].children[0]) if "name" in found else None
    if "hybrid" in found:
        attention, experts = _trees(found["hybrid"])
        return Part(backend, name, _sizes(text, attention), _sizes(text, experts))
    plain = found.get("replicas") or found.get("parallel")
    return Part(backend, name, _sizes(text, plain) if plain else {})


def _sizes(text: str, tree: Tree[Token]) -> dict[str, int]:
    tokens = _tokens(tree)
    sizes: dict[str, int] = {}
    for axis, size in zip(tokens[::2], tokens[1::2], strict=True):
        place = axis.start_pos or 0
        if axis in sizes:
            raise pointed(text, place, f"{str(axis)!r} is given twice", "Give each dimension once.")
        if size.startswith("0"):
            what = f"{axis}{size} asks for nothing; sizes start at 1" if not size.strip("0") else f"{axis}{size}"
            raise pointed(text, place, what, "Sizes are whole numbers of at least 1, without leading zeros.")
        if len(size) > MOST_DIGITS:
            raise pointed(text, place, f"{axis}{size[:MOST_DIGITS]}… is more than any cluster has")
        sizes[str(axis)] = int(size)
    return sizes


def _trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]


def _tokens(tree: Tree[Token]) -> list[Token]:
    return [child for child in tree.children if isinstance(child, Token)]
