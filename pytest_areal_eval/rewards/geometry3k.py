r"""Answers to questions about a picture: ``\boxed{2\sqrt{3}}``, ``[45 degrees]``, a count.

AReaL's ``geometry3k_reward_fn`` reads a number out of gold and answer, so that ``2 \sqrt{3}`` equals 3 and ``7/2`` is
not 3.5; here both are compared as mathematics, whole.  Its prompt asks for a box and its reward for brackets; here a
box counts, and brackets where there is none.
"""

from __future__ import annotations

import re
from typing import Any

from pytest_areal_eval.api import Score
from pytest_areal_eval.rewards.answers import final_text, find_answer, last_box, tidy
from pytest_areal_eval.rewards.gsm8k import parse_amount
from pytest_areal_eval.rewards.math import parse_answer, read_completion, same, shown

_BRACKETS = re.compile(r"\[(?P<answer>[^\[\]]*[^\[\]\s][^\[\]]*)\]")


def geometry3k_reward_fn(
    prompt: Any, completions: str, prompt_ids: Any, completion_ids: Any, answer: Any, **kwargs: Any
) -> Score:
    """1.0 if the completion's last answer equals ``answer`` as mathematics, units aside, else 0.0.

    Args:
        prompt: not read.
        completions: the model's text; what it thought before ``</think>`` is not graded.
        prompt_ids: not read.
        completion_ids: not read.
        answer: a number or LaTeX, alone or in a box or in brackets.
        kwargs: further columns; not read.

    Raises:
        ValueError: ``answer`` cannot be parsed, so that no completion could be right.
    """
    gold = _parse(_marked(str(answer)) or str(answer))
    if not gold or answer is None:
        raise ValueError(f"the gold answer {str(answer)[:80]!r} is no mathematics")
    text = tidy(final_text(str(completions)))
    marked = _marked(text)
    predicted = _parse(marked) if marked else read_completion(text)
    return Score(float(same(gold, predicted)), {}, shown(predicted), shown(gold))


clevr_count_70k_reward_fn = geometry3k_reward_fn
"""Counting is the same; AReaL's compares ``[5]`` as text, so that ``[05]`` and ``5`` are wrong and nothing is right."""


def _marked(text: str) -> str | None:
    """The content of the last box, else of the last brackets; None where the answer is marked otherwise or not."""
    box = last_box(text)
    if box is not None:
        return box[1]
    brackets = None if find_answer(text) else list(_BRACKETS.finditer(text))
    return brackets[-1]["answer"] if brackets else None


def _parse(text: str) -> list[Any]:
    text = text.strip().strip("$").strip()
    amount = parse_amount(text)
    return parse_answer(text) if amount is None else parse_answer(amount)
