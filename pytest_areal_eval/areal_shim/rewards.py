"""AReaL's reward functions, whose results are numbers that other reward functions compute with.

Graded by this package's own functions, so where AReaL's are wrong these are not.
"""

from __future__ import annotations

from typing import Any

from pytest_areal_eval.api import Score


class Reward(float):
    """A reward that can be computed with, and that tells what was compared."""

    extracted: str | None = None
    gold: str | None = None

    @classmethod
    def of(cls, score: Score) -> Reward:
        """A score's reward."""
        reward = cls(score.value)
        reward.extracted, reward.gold = score.extracted, score.gold
        return reward


def gsm8k_reward_fn(
    prompt: Any, completions: Any, prompt_ids: Any, completion_ids: Any, answer: Any, **kwargs: Any
) -> float:
    """1.0 if the completion's last answer is the gold's; see :func:`pytest_areal_eval.rewards.gsm8k_reward_fn`."""
    from pytest_areal_eval.rewards import gsm8k_reward_fn as grade

    return Reward.of(grade(prompt, str(completions), prompt_ids, completion_ids, answer))


def geometry3k_reward_fn(
    prompt: Any, completions: Any, prompt_ids: Any, completion_ids: Any, answer: Any, **kwargs: Any
) -> float:
    """1.0 if the completion's answer, boxed or in brackets, is the gold's; radicals and fractions too."""
    from pytest_areal_eval.rewards import geometry3k_reward_fn as grade

    return Reward.of(grade(prompt, str(completions), prompt_ids, completion_ids, answer))


clevr_count_70k_reward_fn = geometry3k_reward_fn
"""Counting is the same."""


class MathVerifyWorker:
    """Compares mathematical answers.

    Args:
        try_extract_without_anchor: accepted for AReaL's sake; answers without a box are always looked for.
        precision: accepted likewise; it is AReaL's default, 6 decimals.
        timeout: accepted likewise; the reward pool ends what hangs, which no thread can.
    """

    def __init__(self, try_extract_without_anchor: bool = True, precision: int = 6, timeout: float = 5.0) -> None:
        self.precision = precision

    def verify(self, response: str, ground_truth: str) -> float:
        """1.0 if the response's last answer equals the truth as mathematics, else 0.0.

        Raises:
            ValueError: ``ground_truth`` is no mathematics, so that no response could be right.
        """
        from pytest_areal_eval.rewards import math_reward_fn

        return Reward.of(math_reward_fn("", str(response), [], [], answer=ground_truth))


def get_math_verify_worker() -> MathVerifyWorker:
    """A worker; AReaL's is one for the process, and this one keeps nothing."""
    return MathVerifyWorker()
