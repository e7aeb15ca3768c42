"""From token ids to text: all at once, or as they come, and where a stop string begins.

Invariant: the text of a stream only grows; a character whose bytes are not complete yet is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

Decode = Callable[[list[int], bool], str]
"""Token ids, and whether to leave special tokens out, to text."""


class Found(NamedTuple):
    """A stop string and where it begins."""

    start: int
    string: str


def first_stop(text: str, stop: Iterable[str]) -> Found | None:
    """The stop string that begins first in ``text``."""
    return min((Found(start, s) for s in stop if (start := text.find(s)) >= 0), default=None)


def held_back(text: str, stop: Iterable[str]) -> int:
    """How many characters at the end of ``text`` may be the beginning of a stop string."""
    return max(
        (size for s in stop for size in range(1, min(len(s), len(text) + 1)) if text.endswith(s[:size])), default=0
    )


@dataclass
class TextStream:
    """Text of a growing answer.

    Each step decodes the few tokens since the last complete character, with the ones before them as context (a
    tokenizer may write a token differently at the start of a text).
    """

    decoder: Decode
    skip_special_tokens: bool = True
    text: str = ""
    _ids: list[int] = field(default_factory=list)
    _context: int = 0
    _done: int = 0

    def push(self, token: int) -> str:
        """Add a token; returns the text that it completes, perhaps empty."""
        self._ids.append(token)
        before = self.decode(self._ids[self._context : self._done])
        now = self.decode(self._ids[self._context :])
        if len(now) <= len(before) or now.endswith("�"):
            return ""
        self._context, self._done = self._done, len(self._ids)
        self.text += now[len(before) :]
        return now[len(before) :]

    def decode(self, ids: list[int]) -> str:
        """The text of ``ids``."""
        return self.decoder(ids, self.skip_special_tokens)
