from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_areal_eval.rewards.choice import choice_reward_fn
from pytest_areal_eval.rewards.gsm8k import gsm8k_reward_fn, verify_gold

RATIONALE = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nAltogether 48+24 = <<48+24=72>>72 clips.\n#### 72"


def grade(completion: str, answer: str = RATIONALE) -> float:
    return gsm8k_reward_fn("", completion, [], [], answer=answer).value


@pytest.mark.parametrize(
    "completion",
    [
        r"The answer is \boxed{72}.",
        "The answer is 72.",
        "72",
        "#### 72",
        "$72$",
        "**72**",
        "= 72 dollars",
        r"\boxed{72.0}",
        r"\boxed{72\text{ clips}}",
        r"\boxed{144/2}",
        r"\boxed{\$72}",
        r"$\$72$",
        "<think>24</think>\\boxed{72}<|im_end|>",
        "The answer is 72 and 24",
        r"4 is wrong; \boxed{72}",
        r"\boxed{24} so the final answer is 72",
    ],
)
def test_what_areal_counts_as_right_is_right(completion: str) -> None:
    assert grade(completion) == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        r"48+24 = 72 then \boxed{24}",
        r"72 or \boxed{5}",
        r"\boxed{72} \boxed{5}",
        "The answer is 5. Check: 72",
        "first 72, then 5",
        r"\boxed{71}",
        "",
        "I do not know",
        "seventy-two",
        r"\boxed{7.2e1}",
        r"\boxed{72,000}",
        r"\boxed{72",
    ],
)
def test_what_areal_counts_as_wrong_is_wrong(completion: str) -> None:
    assert grade(completion) == 0.0


@pytest.mark.parametrize(
    ("completion", "gold", "reward"),
    [
        (r"\boxed{1200}", "#### 1,200", 1.0),
        (r"\boxed{1,200}", "#### 1,200", 1.0),
        (r"\boxed{\$1,200}", "#### 1,200", 1.0),
        ("1,200", "#### 1,200", 1.0),
        (r"\boxed{1200.00}", "#### 1,200", 1.0),
        (r"\boxed{1,2}", "#### 1,200", 0.0),
        (r"\boxed{-5}", "#### -5", 1.0),
        ("-5", "#### -5", 1.0),
        (r"\boxed{5}", "#### -5", 0.0),
        ("minus 5", "#### -5", 0.0),
        ("0", "#### 0", 1.0),
        (r"\boxed{0.0000001}", "#### 0", 0.0),
        ("1/3", "#### 0.3333333", 1.0),
        (r"\frac{1}{3}", "#### 0.3333333", 1.0),
        ("0.333333", "#### 0.3333333", 1.0),
        ("0.3333", "#### 0.3333333", 0.0),
    ],
)
def test_golds_with_separators_signs_and_fractions(completion: str, gold: str, reward: float) -> None:
    assert grade(completion, gold) == reward


@pytest.mark.parametrize(
    ("completion", "gold", "reward"),
    [
        (r"\boxed{70} no wait \boxed{72}", "72", 1.0),
        (r"\boxed{5} \boxed{72}", "72", 1.0),
        ("<think>so the total is 72", "72", 0.0),
        ("<think>\\boxed{72}", "72", 0.0),
        ("The answer is \u22125", "-5", 1.0),
        (r"\boxed{" + "\u2212" + "5}", "-5", 1.0),
        (r"\boxed{12\,000}", "12,000", 1.0),
        (r"\boxed{12{,}000}", "12000", 1.0),
        ("The answer is 12\u2009000.", "12000", 1.0),
        (r"\boxed{12 000}", "12000", 1.0),
        (r"\boxed{3,5}", "3", 0.0),
        (r"\boxed{12:00}", "12", 0.0),
    ],
)
def test_where_areal_is_wrong_the_last_finished_answer_counts(completion: str, gold: str, reward: float) -> None:
    """C79: two boxes, thinking that never ended, the minus sign U+2212, thin spaces."""
    assert grade(completion, gold) == reward


@pytest.mark.parametrize(
    ("completion", "gold", "reward"),
    [
        ("<think>20 and then some", "20", 0.0),
        ("42</think>The answer is 41", "41", 1.0),
        ("42</think>The answer is 41", "42", 0.0),
        ("<think>41</think>\n\n42", "42", 1.0),
        ("<think>a</think>42<think>and so", "42", 0.0),
    ],
)
def test_only_what_follows_the_thinking_is_graded(completion: str, gold: str, reward: float) -> None:
    """C66: ``<think>`` graded as the answer; a lone closing tag."""
    assert grade(completion, gold) == reward


@pytest.mark.parametrize("completion", [r"\boxed{50\%}", r"\boxed{50%}", "The answer is 50%", r"The answer is $50\%$"])
def test_a_percentage_is_its_number(completion: str) -> None:
    """C75: a percent sign read as a hundredth in one place and dropped in another."""
    assert grade(completion, "50") == 1.0
    assert grade(completion, "0.5") == 0.0


@pytest.mark.parametrize(("completion", "gold"), [("711", "11"), ("149", "49"), ("5", "-5"), ("-5", "5")])
def test_a_number_that_ends_like_the_gold_is_wrong(completion: str, gold: str) -> None:
    """C76: numbers compared by their suffix."""
    assert grade(completion, gold) == 0.0
    assert grade(rf"\boxed{{{completion}}}", gold) == 0.0


@pytest.mark.parametrize(
    ("completion", "gold", "reward"),
    [
        ("She makes 9 * 2 = $<<9*2=18>>18 a day.\nA: 18", "18", 1.0),
        ("It is 130,000-40,000=$<<130000-40000=90000>>90,000\nA: 90,000", "90000", 1.0),
        ("The answer is \\$18", "18", 1.0),
        ("The answer is $18 per day, so she has enough for $5 more.", "18", 1.0),
        ("She pays $5 for bread and $3 for milk. So she spends $8.", "8", 1.0),
        (r"\boxed{18 dollars}", "18", 1.0),
        (r"\boxed{\$18.00\text{ per day}}", "18", 1.0),
        (r"\boxed{60 km/h}", "60", 1.0),
        (r"\boxed{1.5 million}", "1.5", 0.0),
        (r"\boxed{72x}", "72", 0.0),
        (r"\boxed{72k}", "72", 0.0),
        (r"\boxed{x = 18}", "18", 1.0),
        (r"\boxed{\boxed{72}}", "72", 1.0),
        (r"\boxed{\frac{36}{2}}", "18", 1.0),
        ("#### 1. Compute\n2+2\n#### 2. Conclude\nThe answer is 4", "4", 1.0),
        ("The answer is correct: 9 + 9 makes\n18", "18", 1.0),
        ("72 is what I get.<|endoftext|><|im_end|>", "72", 1.0),
    ],
)
def test_answers_as_models_write_them(completion: str, gold: str, reward: float) -> None:
    assert grade(completion, gold) == reward


def test_the_score_tells_what_was_compared() -> None:
    score = gsm8k_reward_fn("", r"\boxed{\$1,200.00}", [], [], answer="so\n#### 1,300")
    assert (score.value, score.extracted, score.gold) == (0.0, "1200", "1300")
    assert gsm8k_reward_fn("", "none", [], [], answer="5").extracted is None


def test_a_gold_with_its_rationale_verifies_and_one_without_an_answer_does_not() -> None:
    """C69: the whole rationale as the gold answer, exact match impossible."""
    assert verify_gold("48/2 = <<48/2=24>>24\n#### 1,080") is None
    assert verify_gold("-3.5") is None
    assert verify_gold("1/2") is None
    assert verify_gold("#### ") == "the gold answer is empty"
    assert verify_gold("#### many") == "the gold answer 'many' has no number"


@pytest.mark.parametrize("answer", ["", "#### many", "None"])
def test_a_gold_without_a_number_is_an_error_not_a_zero(answer: str) -> None:
    with pytest.raises(ValueError, match="has no number"):
        grade("5", answer)


def test_rewards_carry_the_check_of_their_golds() -> None:
    assert getattr(gsm8k_reward_fn, "verify_gold") is verify_gold  # noqa: B009 - a function has no such attribute
    verify_letter = getattr(choice_reward_fn, "verify_gold")  # noqa: B009
    assert verify_letter("B") is None
    assert verify_letter("Paris") == "the gold answer 'Paris' is neither a letter from A to J nor an index from 0 to 9"


def test_checking_plain_golds_imports_no_mathematics() -> None:
    code = (
        "import sys; from pytest_areal_eval.rewards import verify_gold\n"
        "assert verify_gold('#### 1,080') is None\n"
        "assert not {'math_verify', 'sympy', 'cloudpickle', 'asyncio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
