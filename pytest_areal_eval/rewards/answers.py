"""Where in a completion its answer is: after the thinking, the last one that the model gave.

Invariant: plain text in, plain text out; nothing here parses mathematics, and no completion makes it slow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_SPECIAL_TOKEN = re.compile(r"(?:<[|｜][^<>|｜]{1,40}[|｜]>|</?s>|<eos>|<pad>|<end_of_turn>)\Z")
_LONGEST_TOKEN = 44
_FINAL_PHRASE = re.compile(r"(?i:final answer\b[^\n.]{0,60}?(?:\bis|[:=]))[*\s:=]*(?P<answer>\S[^\n]*)")
_PHRASE = re.compile(r"(?i:\banswer\b[^\n.\d]{0,60}?(?:\bis\b|[:=])|(?<![^\n*])A:)[*\s:=]*(?P<answer>\S[^\n]*)")
_HASHES = re.compile(r"####[ \t]*+(?P<answer>[-+$−]*+\d[\d,.]*+)[ \t]*+(?:\\?%)?[ \t]*+$", re.MULTILINE)

_BRACES = re.compile(r"(?P<open>\\boxed\s*\{|\{)|\\.|\}", re.DOTALL)
_TYPOGRAPHY = str.maketrans({"−": "-", "﹣": "-", "－": "-", "％": "%", "\u2009": " ", "\u202f": " ", "\u00a0": " "})
_DIGIT_GROUP = re.compile(r"(?<=\d)(?:,?\\[,;:! ]|\{,\}|[\u2009\u202f\u00a0])(?=\d{3}(?!\d))")
# "$5 each", "$1,200." and a last "$8", but neither "$5$" nor "$5 + x$".
_CURRENCY = re.compile(r"\$ ?(?=-?\d[\d,]*+(?:\.\d++)?+(?:[.,;:!?)*]*\s*\Z|[.,;:!?)*]+\s|[.,;:!?)*]*\s+[A-Za-z]{2}))")


@dataclass(frozen=True)
class Found:
    """An answer's text, and how the model marked it."""

    text: str
    mark: Literal["box", "hashes", "phrase"]


def unfinished_thinking(text: str) -> bool:
    """Whether the model was still thinking when it stopped: a ``<think>`` without its ``</think>``."""
    return text.rfind("<think>") > text.rfind("</think>")


def final_text(completion: str) -> str:
    """What follows the thinking, without special tokens at its end; empty where the thinking never ended.

    A lone ``</think>`` counts too: chat templates may put the opening tag into the prompt.
    """
    if unfinished_thinking(completion):
        return ""
    text = completion.rpartition("</think>")[2].strip()
    while token := _SPECIAL_TOKEN.search(text, max(len(text) - _LONGEST_TOKEN, 0)):
        text = text[: token.start()].rstrip()
    return text


def find_answer(text: str) -> Found | None:
    """The answer that the text marks, or None where it marks none.

    The last ``\\boxed{}`` or "final answer is", whichever comes later; else the last ``#### N``; else the last
    "answer is" or ``A:``.
    """
    box, final = last_box(text), _last(_FINAL_PHRASE, text)
    if final is not None and (box is None or final.start() > box[0]) and r"\boxed" not in final["answer"]:
        return Found(final["answer"], "phrase")
    if box is not None:
        return Found(box[1], "box")
    if (hashes := _last(_HASHES, text)) is not None:
        return Found(hashes["answer"], "hashes")
    if (phrase := _last(_PHRASE, text)) is not None:
        return Found(phrase["answer"], "phrase")
    return None


def last_box(text: str) -> tuple[int, str] | None:
    """Position and content of the last ``\\boxed{...}`` whose braces close."""
    opened: list[re.Match[str]] = []
    last: re.Match[str] | None = None
    content = ""
    for token in _BRACES.finditer(text):
        if token["open"]:
            opened.append(token)
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start[0] != "{" and (last is None or start.start() > last.start()):
                last, content = start, text[start.end() : token.start()]
    return None if last is None else (last.start(), content)


def tidy(text: str) -> str:
    """One spelling for what has several: minus signs, and digits grouped by spaces (``12\\,000``, ``1{,}200``)."""
    return _DIGIT_GROUP.sub("", text).translate(_TYPOGRAPHY)


def without_currency(text: str) -> str:
    """Remove dollar signs that stand before an amount, which mathematics would read as its delimiter."""
    return _CURRENCY.sub("", text.replace(r"\$", "$ ")) if "$" in text else text


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for last in pattern.finditer(text):  # noqa: B007 - wanted: the last one
        pass
    return last
