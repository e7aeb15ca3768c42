"""Numbers and foreign text made fit for a terminal line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_areal_eval.api import Episode

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Foreign text without control characters and without marks that reorder what follows."""
    return _CONTROL.sub("�", text)


def seconds(value: float) -> str:
    """``4.2s``, ``3m05s``, ``2h07m``."""
    if value < 60:
        return f"{value:.1f}s" if value < 10 else f"{value:.0f}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def count(value: float) -> str:
    """``950``, ``12.3k``, ``4.56M``."""
    for size, unit in ((1_000_000, "M"), (10_000, "k")):
        if value >= size:
            return f"{value / (1000 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.0f}"


def items_are(n: int) -> str:
    """``1 item is``, ``2 items are``."""
    return f"{n} item is" if n == 1 else f"{n} items are"


def answer_of(episode: Episode, limit: int = 60) -> str:
    """What an episode answered, on one line: what the grader read, else the end of what the model wrote."""
    if episode.extracted:
        return _short(episode.extracted, limit)
    text = " ".join(episode.completion.split()) or episode.error
    return text if len(text) <= limit else f"…{text[-limit + 1 :]}"


def _short(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
