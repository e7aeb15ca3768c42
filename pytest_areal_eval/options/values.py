"""What the value of an option may be: each function reads a text, or says what is wrong with it.

Raises:
    argparse.ArgumentTypeError: the text is no such value.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", int, float)


def some_text(text: str) -> str:
    """Anything but nothing, which is what an unset shell variable leaves."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the value is empty; is a shell variable unset?")
    return text


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    value = _number(int, text, "a whole number")
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def whole_number(text: str) -> int:
    """Any whole number."""
    return _number(int, text, "a whole number")


def temperature(text: str) -> float:
    """A finite number of at least 0."""
    value = _number(float, text, "a number")
    if not (0 <= value < math.inf):
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value


def probability(text: str) -> float:
    """A number above 0 and at most 1."""
    value = _number(float, text, "a number")
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


def seconds(text: str) -> float:
    """A finite number of seconds above 0."""
    value = _number(float, text, "a number of seconds")
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 seconds")
    return value


def own_path(text: str) -> str:
    """A path, whose ``~`` no shell expands behind an ``=``."""
    return os.path.expanduser(some_text(text))


def one_of(*words: str) -> Callable[[str], str]:
    """A check for one of several words."""

    def check(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is not {', '.join(words[:-1])} or {words[-1]}")
        return text

    return check


def shard(text: str) -> tuple[int, int]:
    """``i/n`` with 1 ≤ i ≤ n."""
    head, slash, tail = text.partition("/")
    if not (slash and head.isdecimal() and tail.isdecimal() and 1 <= int(head) <= int(tail)):
        raise argparse.ArgumentTypeError(f"{text!r} is not i/n with 1 <= i <= n, such as 1/4")
    return int(head), int(tail)


def variable(text: str) -> str:
    """``NAME=VALUE`` of an environment; ``NAME`` alone: as it is in ours."""
    name = text.partition("=")[0]
    if not (name.isidentifier() and name.isascii()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as NCCL_DEBUG=WARN, or NAME")
    return text


def variable_name(text: str) -> str:
    """``NAME`` of an environment's variable; what is none may be the secret itself, and is not shown."""
    if not (some_text(text).isidentifier() and text.isascii()):
        raise argparse.ArgumentTypeError("this is no variable's name; give the name of the one that holds the key")
    return text


def named_dataset(text: str) -> tuple[str, str]:
    """``NAME=SOURCE``."""
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SOURCE, such as test_gsm8k=data/test.jsonl")
    return name, source


def _number(kind: type[T], text: str, what: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
