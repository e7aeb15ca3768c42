"""What a backend specification asks for: which engine, how many replicas, how each is split over GPUs.

Invariant: a specification either parses to one :class:`Allocation` or is one ``ConfigError`` that shows the place;
``str()`` of an allocation parses back to an equal one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_areal_eval.errors import ConfigError

AXES = {"d": "data_parallel_size", "t": "tp_size", "p": "pp_size"}


@dataclass(frozen=True)
class Allocation:
    """``data_parallel_size`` replicas of ``tp_size * pp_size`` GPUs each."""

    backend: str
    data_parallel_size: int = 1
    tp_size: int = 1
    pp_size: int = 1

    def __str__(self) -> str:
        return f"{self.backend}:d{self.data_parallel_size}p{self.pp_size}t{self.tp_size}"


def parse_allocation(text: str) -> Allocation:
    """Read a specification such as ``sglang:d12p1t1``; what is left out is 1.

    Raises:
        ConfigError: with the column and what was expected there.
    """
    from lark import Lark, Token, Tree
    from lark.exceptions import UnexpectedInput

    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    try:
        tree = Lark(grammar, parser="lalr").parse(text)
    except UnexpectedInput as error:
        column = min(error.pos_in_stream or 0, len(text))
        found = repr(text[column]) if column < len(text) else "end"
        raise ConfigError(
            f"--backend={text}: unexpected {found} at column {column + 1}\n  {text}\n  {' ' * column}^",
            "Write BACKEND or BACKEND:dNtNpN, such as hf, hf:d2 or sglang:d4t2.",
        ) from None
    sizes: dict[str, int] = {}
    for dimension in tree.children[1:]:
        assert isinstance(dimension, Tree)
        axis, size = (str(token) for token in dimension.children if isinstance(token, Token))
        if AXES[axis] in sizes:
            raise ConfigError(f"--backend={text}: {axis!r} is given twice")
        if int(size) < 1:
            raise ConfigError(f"--backend={text}: {axis}{size} asks for nothing; sizes start at 1")
        sizes[AXES[axis]] = int(size)
    return Allocation(str(tree.children[0]), **sizes)
