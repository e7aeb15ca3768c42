"""Reward functions, and the pool of killable processes that runs them.

The names load when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_areal_eval.rewards.answers import final_text, unfinished_thinking
    from pytest_areal_eval.rewards.choice import choice_reward_fn, exact_match_reward_fn
    from pytest_areal_eval.rewards.geometry3k import clevr_count_70k_reward_fn, geometry3k_reward_fn
    from pytest_areal_eval.rewards.gsm8k import gsm8k_reward_fn, verify_gold
    from pytest_areal_eval.rewards.importing import import_from_string
    from pytest_areal_eval.rewards.math import math_reward_fn
    from pytest_areal_eval.rewards.pool import RewardPool
    from pytest_areal_eval.rewards.values import as_score
    from pytest_areal_eval.rewards.wrapper import AsyncRewardWrapper

_HOMES = {
    "AsyncRewardWrapper": "wrapper",
    "RewardPool": "pool",
    "as_score": "values",
    "choice_reward_fn": "choice",
    "clevr_count_70k_reward_fn": "geometry3k",
    "exact_match_reward_fn": "choice",
    "final_text": "answers",
    "geometry3k_reward_fn": "geometry3k",
    "gsm8k_reward_fn": "gsm8k",
    "import_from_string": "importing",
    "math_reward_fn": "math",
    "unfinished_thinking": "answers",
    "verify_gold": "gsm8k",
}

__all__ = [
    "AsyncRewardWrapper",
    "RewardPool",
    "as_score",
    "choice_reward_fn",
    "clevr_count_70k_reward_fn",
    "exact_match_reward_fn",
    "final_text",
    "geometry3k_reward_fn",
    "gsm8k_reward_fn",
    "import_from_string",
    "math_reward_fn",
    "unfinished_thinking",
    "verify_gold",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
