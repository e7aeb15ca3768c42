r"""Grade-school mathematics: one number, however the model writes it.

Agrees with AReaL's ``gsm8k_reward_fn`` save where that is wrong: of two boxes the last counts (AReaL compares the set
of both), thinking that never ended scores 0, the minus sign U+2212 and ``12\,000`` are read; ``50\%`` is 50, never 0.5.
"""

from __future__ import annotations

import re
from typing import Any

from pytest_areal_eval.api import Score
from pytest_areal_eval.rewards.answers import Found, final_text, find_answer, tidy, without_currency
from pytest_areal_eval.rewards.math import parse, same, shown

_NUMBER = r"(?:\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)"
_WORDS = r"(?!pi\b)[A-Za-z]{2,}+(?:[ /.]++[A-Za-z]++)*+"
_UNIT = rf"(?:\\(?:text|textbf|mathrm|mbox)\s*\{{[^{{}}\d]*\}}|\^?\s*\{{?\\circ\}}?|\\ |{_WORDS})"
_AMOUNT = re.compile(
    rf"\s*(?P<sign>-?)\s*(?:\\?[$€£¥₹]\s*)?(?P<minus>-?)(?P<number>{_NUMBER})\s*(?P<unit>{_UNIT}*)[.\s]*"
)
_LONGEST_AMOUNT = 100
_PERCENT = re.compile(r"(?<=\d)\s*\\?%")
_SCALES = re.compile(r"(?i)\b(?:thousand|million|billion|trillion|hundred|dozen|mil|bn|mm)s?\b")


def gsm8k_reward_fn(
    prompt: Any, completions: str, prompt_ids: Any, completion_ids: Any, answer: Any, **kwargs: Any
) -> Score:
    """1.0 if the completion's last answer is the number that ``answer`` gives, else 0.0.

    Args:
        prompt: not read.
        completions: the model's text; what it thought before ``</think>`` is not graded.
        prompt_ids: not read.
        completion_ids: not read.
        answer: the number, or the whole solution that ends in ``#### number``.
        kwargs: further columns; not read.

    Raises:
        ValueError: ``answer`` has no number, so that no completion could be right.
    """
    gold = _parse_marked(_gold(answer))
    if not gold:
        raise ValueError(f"the gold answer {_gold(answer)[:80]!r} has no number")
    text = _PERCENT.sub("", tidy(final_text(str(completions))))
    found = find_answer(text)
    predicted = _parse_found(found) if found else []
    if not predicted:
        predicted = parse(without_currency(text))
    return Score(float(same(gold, predicted)), {}, shown(predicted), shown(gold))


def verify_gold(answer: Any) -> str | None:
    """Why no completion could be right for this gold answer; None if one can, or if only the reward pool could tell.

    Meant for collection: a plain number costs microseconds and imports nothing.
    """
    gold = _gold(answer)
    if not gold:
        return "the gold answer is empty"
    if parse_amount(gold) is not None:
        return None
    if not re.search(r"\d", gold):
        return f"the gold answer {gold[:80]!r} has no number"
    if re.search(r"[\^!\\]", gold):  # may take math-verify any time
        return None
    parsed = _parse_marked(gold)
    return None if same(parsed, parsed) else f"the gold answer {gold[:80]!r} does not equal itself"


def _gold(answer: Any) -> str:
    return _PERCENT.sub("", tidy(str(answer)).rpartition("####")[2].strip())


def _parse_found(found: Found) -> list[Any]:
    if found.mark == "phrase":
        return parse(f"The answer is {without_currency(found.text)}")
    return _parse_marked(found.text, box=found.mark == "box")


def _parse_marked(text: str, box: bool = False) -> list[Any]:
    """Parse what is an answer and nothing else: an amount with its currency and unit, or an expression."""
    amount = parse_amount(text)
    if amount is not None:
        return parse(amount)
    return parse(f"\\boxed{{{text}}}" if box else text)


def parse_amount(text: str) -> str | None:
    """``$1,200 per day`` as ``1200``; None where the text is not a number with a unit (``3 million``, ``72x``)."""
    match = _AMOUNT.fullmatch(text) if len(text) <= _LONGEST_AMOUNT else None
    if match is None or _SCALES.search(match["unit"]):
        return None
    return (match["sign"] or match["minus"]) + re.sub("[, ]", "", match["number"])


setattr(gsm8k_reward_fn, "verify_gold", verify_gold)  # noqa: B010 - collection looks for it there
