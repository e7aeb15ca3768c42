r"""Answers about pictures: AReaL's own facts where they are right, and the right verdict where its reward is wrong."""

from __future__ import annotations

import pytest

from pytest_areal_eval.rewards import clevr_count_70k_reward_fn, geometry3k_reward_fn


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("so [90]", "90"),
        ("[5.0]", "5"),
        ("[1/2]", "0.5"),
        ("[ 90 ]", "90"),
        ("[45 degrees]", "45"),
        (r"[$\sqrt{4}$]", "2"),
        ("first [10], then [20], at last [30]", "30"),
        ("<think>[7]</think> [90]<|im_end|>", "90"),
        (r"\boxed{90^\circ}", "90"),
        (r"\boxed{45 \text{ cm}}", "45"),
        (r"\boxed{2\sqrt{3}}", r"2 \sqrt { 3 }"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{7/2}", "3.5"),
        (r"in the interval [0, 5] so \boxed{7}", "7"),
        (r"\boxed{40} degrees since 180", "40"),
        ("The answer is 12.", "12"),
        ("12", "12"),
        ("[3]", r"\boxed{3}"),
    ],
)
def test_an_equal_answer_scores(completion: str, answer: str) -> None:
    assert geometry3k_reward_fn("", completion, [], [], answer).value == 1.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{3}", r"2 \sqrt { 3 }"),
        (r"\boxed{5\sqrt{3}}", r"2 \sqrt { 3 }"),
        ("[90]", "45"),
        ("[90", "45"),
        ("", "45"),
        ("[]", "45"),
        ("<think>[45]", "45"),
        (r"\boxed{45} or [46]", "46"),
    ],
)
def test_another_answer_does_not(completion: str, answer: str) -> None:
    assert geometry3k_reward_fn("", completion, [], [], answer).value == 0.0


@pytest.mark.parametrize(
    ("completion", "right"), [("[05]", 1), ("[5.0]", 1), ("5", 1), ("[ 5 ]", 1), ("[6]", 0), ("", 0)]
)
def test_a_count_is_a_number(completion: str, right: int) -> None:
    assert clevr_count_70k_reward_fn("", completion, [], [], 5).value == right


@pytest.mark.parametrize("answer", [None, ""])
def test_a_gold_that_is_none_is_an_error_and_no_verdict(answer: str | None) -> None:
    with pytest.raises(ValueError, match="is no mathematics"):
        geometry3k_reward_fn("", "[5]", [], [], answer)
