"""Answers that are text: a letter of a multiple choice, or the exact words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from pytest_areal_eval.api import Score
from pytest_areal_eval.rewards.answers import final_text, find_answer

_LETTERS = "ABCDEFGHIJ"
_OPEN = r"[\s$*(\[{]*+"
_MARKED = re.compile(rf"{_OPEN}(?:\\(?:text|textbf|mathrm|mbox)\s*+\{{)?{_OPEN}(?P<letter>[A-Ja-j])(?![A-Za-z'])")
_ALONE = re.compile(r"(?m)^[ \t$*(\[]*+(?P<letter>[A-J])(?:[ \t$*)\].:]*+$|[)\].:])")
_BRACKETED = re.compile(r"\((?P<letter>[A-J])\)")


def choice_reward_fn(
    prompt: Any, completions: str, prompt_ids: Any, completion_ids: Any, answer: Any, **kwargs: Any
) -> Score:
    """1.0 if the completion's last chosen letter, A to J, is the gold one, else 0.0.

    A choice is what a box or "the answer is" names; else a line that is a letter or begins like ``B.``; else the last
    ``(B)``.

    Args:
        prompt: not read.
        completions: the model's text; what it thought before ``</think>`` is not graded.
        prompt_ids: not read.
        completion_ids: not read.
        answer: a letter (``B``, ``(B)``, ``B. Paris``), or an index from 0.
        kwargs: further columns; not read.
    """
    gold = _gold_letter(answer)
    chosen = _chosen(final_text(str(completions)))
    return Score(float(chosen == gold), {}, chosen, gold)


def exact_match_reward_fn(
    prompt: Any, completions: str, prompt_ids: Any, completion_ids: Any, answer: Any, **kwargs: Any
) -> Score:
    """1.0 if the completion's box, or all of it where it has none, is ``answer`` word for word, else 0.0.

    White space, Unicode composition and a final full stop do not count; case does.

    Args:
        prompt: not read.
        completions: the model's text; what it thought before ``</think>`` is not graded.
        prompt_ids: not read.
        completion_ids: not read.
        answer: the expected text, or several that are all right.
        kwargs: further columns; not read.
    """
    text = final_text(str(completions))
    found = find_answer(text)
    given = _words(found.text if found and found.mark == "box" else text)
    several = isinstance(answer, Iterable) and not isinstance(answer, str)
    golds = [_words(str(one)) for one in (answer if several else [answer])]
    return Score(float(bool(given) and given in golds), {}, given or None, " | ".join(golds))


def verify_letter(answer: Any) -> str | None:
    """Why no choice could be right for this gold answer; None if one can."""
    try:
        _gold_letter(answer)
    except ValueError as error:
        return str(error)
    return None


def _gold_letter(answer: Any) -> str:
    if isinstance(answer, int) and 0 <= answer < len(_LETTERS):
        return _LETTERS[answer]
    match = _MARKED.match(str(answer))
    if match is None:
        raise ValueError(f"the gold answer {answer!r} is neither a letter from A to J nor an index from 0 to 9")
    return match["letter"].upper()


def _chosen(text: str) -> str | None:
    found = find_answer(text)
    if found is not None and (match := _MARKED.match(found.text)):
        return match["letter"].upper()
    for pattern in (_ALONE, _BRACKETED):
        if letters := [match["letter"] for match in pattern.finditer(text)]:
            return letters[-1]
    return None


def _words(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split()).removesuffix(".")


setattr(choice_reward_fn, "verify_gold", verify_letter)  # noqa: B010 - collection looks for it there
