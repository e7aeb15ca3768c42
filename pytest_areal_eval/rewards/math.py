r"""Mathematical answers, compared by math-verify with AReaL's settings.

Invariant: no timeouts of math-verify's own.  They need signals of the main thread and cannot stop what hangs in C; a
hang is ended by the reward pool, which kills the process.
"""

from __future__ import annotations

import re
from typing import Any

from pytest_areal_eval.api import Score
from pytest_areal_eval.rewards.answers import Found, final_text, find_answer, last_box, tidy, without_currency

PRECISION = 6
"""Decimals to which numbers are compared, as in AReaL."""

_SHOWN = 200
_DELIMITERS = re.compile(r"\$|\\\(|\\\[|\\boxed")
_ARITHMETIC = re.compile(r"[\d\s.,+\-*/^()%]+")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+")
_PLAIN_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\s*\{([^{}]*)\}")
_BARE_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_LONG_WORD = re.compile(r"(?<!\\)\b(?!sqrt|sin|cos|tan|log|exp|pi)[A-Za-z]{3,}")


def math_reward_fn(
    prompt: Any, completions: str, prompt_ids: Any, completion_ids: Any, answer: Any, **kwargs: Any
) -> Score:
    """1.0 if the completion's last answer equals ``answer`` as mathematics, else 0.0.

    Args:
        prompt: not read.
        completions: the model's text; what it thought before ``</think>`` is not graded.
        prompt_ids: not read.
        completion_ids: not read.
        answer: LaTeX, plain arithmetic, or a solution whose last ``\\boxed{}`` is the answer.
        kwargs: further columns; not read.

    Raises:
        ValueError: ``answer`` cannot be parsed, so that no completion could be right.
    """
    box = last_box(str(answer))
    gold = parse_answer(box[1] if box else str(answer))
    if not gold:
        raise ValueError(f"the gold answer {str(answer)[:80]!r} is no mathematics")
    predicted = read_completion(str(completions))
    return Score(float(same(gold, predicted)), {}, shown(predicted), shown(gold))


def read_completion(completion: str) -> list[Any]:
    """What math-verify makes of the completion's last answer; empty where there is none."""
    text = tidy(final_text(completion))
    found = find_answer(text)
    if found is not None and (parsed := parse_found(found)):
        return parsed
    if "\n" not in text and not _LONG_WORD.search(text):
        return parse_answer(text) if text else []
    return parse(without_currency(text))


def parse_found(found: Found) -> list[Any]:
    """Parse a marked answer; after a phrase the first expression counts, as in "the answer is 5, not 7"."""
    if found.mark == "box" or not (_LONG_WORD.search(found.text) or _DELIMITERS.search(found.text)):
        return parse_answer(found.text.rstrip(". *"))
    return parse(f"The answer is {without_currency(found.text)}")


def parse_answer(text: str) -> list[Any]:
    """Parse a text that is an answer and nothing else, so that none of it can be dropped."""
    text = tidy(text).strip()
    bare = _PLAIN_TEXT.sub(r"\1", text).strip()
    if _WORDS.fullmatch(bare):
        return [bare.casefold()]
    if _ARITHMETIC.fullmatch(text):
        return parse(text)
    if _DELIMITERS.search(text.replace(r"\$", "")):
        return parse(text)
    return parse(f"\\boxed{{{_BARE_PI.sub(lambda _: chr(92) + 'pi', text)}}}")


def parse(text: str) -> list[Any]:
    """What math-verify finds in ``text``, with the extraction that AReaL configures."""
    import math_verify

    targets = (
        math_verify.ExprExtractionConfig(try_extract_without_anchor=True),
        math_verify.LatexExtractionConfig(),
    )
    return list(math_verify.parse(text, targets, parsing_timeout=None))


def same(gold: list[Any], predicted: list[Any]) -> bool:
    """Whether two parsed answers are equal; an answer that is not there equals nothing."""
    import math_verify

    if not gold or not predicted:
        return False
    return bool(math_verify.verify(gold, predicted, float_rounding=PRECISION, timeout_seconds=None))


def shown(parsed: list[Any]) -> str | None:
    """An answer as reports and votes name it: a number in its shortest form, else the text that was parsed."""
    value: Any = parsed[0] if parsed else None
    if getattr(value, "is_Rational", False):
        text = str(value)
    elif getattr(value, "is_Float", False):
        text = f"{float(value):.12g}"
    else:
        text = str(parsed[-1]) if parsed and isinstance(parsed[-1], str) else ""
    return text[:_SHOWN] or None
