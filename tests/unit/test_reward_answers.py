from __future__ import annotations

import time
from typing import Any

import pytest

from pytest_areal_eval.rewards.answers import (
    final_text,
    find_answer,
    last_box,
    tidy,
    unfinished_thinking,
    without_currency,
)
from pytest_areal_eval.rewards.choice import choice_reward_fn, exact_match_reward_fn
from pytest_areal_eval.rewards.gsm8k import verify_gold
from pytest_areal_eval.rewards.math import math_reward_fn


def maths(completion: str, answer: str) -> float:
    return math_reward_fn("", completion, [], [], answer=answer).value


@pytest.mark.parametrize(
    ("text", "unfinished"),
    [
        ("<think>20", True),
        ("<think>20</think>", False),
        ("20</think>the rest", False),
        ("no thinking", False),
        ("<think>a</think><think>b", True),
        ("", False),
    ],
)
def test_thinking_is_unfinished_until_its_last_tag_closes(text: str, unfinished: bool) -> None:
    assert unfinished_thinking(text) is unfinished


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("<think>a</think>\n42<|im_end|>", "42"),
        ("42</s>\n", "42"),
        ("42<end_of_turn>", "42"),
        ("42<｜end▁of▁sentence｜>", "42"),
        ("a < b and |c| > d", "a < b and |c| > d"),
        ("<think>42", ""),
    ],
)
def test_special_tokens_and_thinking_are_no_answer(completion: str, text: str) -> None:
    assert final_text(completion) == text


def test_the_last_closed_box_is_found() -> None:
    assert last_box(r"\boxed{1} \boxed{\frac{2}{3}} \boxed{4") == (10, r"\frac{2}{3}")
    assert last_box(r"\boxed{\{1, 2\}}") == (0, r"\{1, 2\}")
    assert last_box(r"\boxed{\left\{ x \right.}") == (0, r"\left\{ x \right.")
    assert last_box("no box }{") is None


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 50_000,
        "answer " * 50_000,
        " " * 50_000 + "x",
        "\n" * 50_000 + "x",
        "<|a|> " * 30_000 + "x",
        "(" * 50_000,
    ]
    + [
        f"{start}5{rest * 30_000}!" for start in ("", "$", "#### ") for rest in (" ", ".", ",", "ab ", "a", r"\text{a}")
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_no_completion_makes_the_search_slow(text: str) -> None:
    """Each of these took over a second with a pattern that goes back over what it read."""
    started = time.perf_counter()
    find_answer(tidy(without_currency(final_text(text))))
    verify_gold(text[:30_000])
    choice_reward_fn("", text, [], [], answer="A")
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("The answer is 0.5", "1/2", 1.0),
        (r"Step 1: 2+2=4. \boxed{4}", "4", 1.0),
        (r"$\sqrt{4} = 2$", "2", 1.0),
        ("The answer is 8", "2^3", 1.0),
        (r"The answer is $\frac{5}{6}$", "5/6", 1.0),
        ("x = 3", "3", 1.0),
        ("$10^3$", "1000", 1.0),
        ("3+2", "5", 1.0),
        ("4", "3/12", 0.0),
        ("0.0000001", "0.0000001", 1.0),
    ],
)
def test_areal_s_own_assertions_hold(completion: str, answer: str, reward: float) -> None:
    assert maths(completion, answer) == reward


def test_equations_are_compared_whole() -> None:
    """C74: two equations that end in ``=0`` counted as equal."""
    assert maths("3x + 4y + 14=0", "3*x-1*y+13=0") == 0.0
    assert maths("3x + 4y + 14=0", "3x + 4y + 14=0") == 1.0
    assert maths("6x + 8y + 28 = 0", "3x + 4y + 14=0") == 1.0


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("pi/2", r"\dfrac{\pi}{2}", 1.0),
        ("14.0 + -1.0i", "14-i", 0.0),  # right, but math-verify cannot tell
        (r"\text{13}", "13", 1.0),
        (r"\boxed{\text{east}}", "east", 1.0),
        (r"\boxed{east}", "seat", 0.0),
        (r"\boxed{(3,5]}", "(3,5]", 1.0),
        (r"\boxed{(3,5)}", "(3,5]", 0.0),
        (r"\boxed{\frac12}", "0.5", 1.0),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", 1.0),
        (r"\boxed{3}", r"2\sqrt{3}", 0.0),
        (r"thus \boxed{x^2+2x+1}", "(x+1)^2", 1.0),
        (r"\boxed{7}", r"We get $3+4$, so \boxed{7}.", 1.0),
        ("", "5", 0.0),
        ("<think>5", "5", 0.0),
    ],
)
def test_the_table_of_plain_and_latex_forms(completion: str, answer: str, reward: float) -> None:
    """C78: what of plain text is read as mathematics."""
    assert maths(completion, answer) == reward


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("The answer is B.", "B", 1.0),
        ("The answer is (B).", "B. Paris", 1.0),
        (r"so \boxed{\text{(C)}}", "C", 1.0),
        (r"so \boxed{C}, not (B)", "C", 1.0),
        ("Answer: **D**", "(D)", 1.0),
        ("A cat sat.\nB", "B", 1.0),
        ("B. Because it is.", 1, 1.0),
        ("It cannot be (A), so it is (J) that fits", "J", 1.0),
        ("A cat sat on the mat", "A", 0.0),
        ("The answer is Because", "B", 0.0),
        ("<think>The answer is B.", "B", 0.0),
        ("", "A", 0.0),
    ],
)
def test_the_last_chosen_letter_counts(completion: str, answer: Any, reward: float) -> None:
    assert choice_reward_fn("", completion, [], [], answer=answer).value == reward


def test_a_gold_that_is_no_letter_is_an_error() -> None:
    with pytest.raises(ValueError, match="'Paris' is neither a letter"):
        choice_reward_fn("", "B", [], [], answer="Paris")


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("Paris.", "Paris", 1.0),
        (" New\n York ", "New York", 1.0),
        (r"It is \boxed{Paris}", "Paris", 1.0),
        ("paris", "Paris", 0.0),
        ("Lutetia", ["Paris", "Lutetia"], 1.0),
        ("", "", 0.0),
        ("4", 4, 1.0),
    ],
)
def test_exact_words_match(completion: str, answer: Any, reward: float) -> None:
    assert exact_match_reward_fn("", completion, [], [], answer=answer).value == reward
