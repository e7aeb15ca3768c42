"""Which reward functions can tell, before anything is generated, that no completion could match a gold answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_areal_eval.rewards.importing import import_from_string

_HOME = "pytest_areal_eval.rewards"
_CHECKS = {
    "gsm8k_reward_fn": f"{_HOME}.gsm8k.verify_gold",
    "choice_reward_fn": f"{_HOME}.choice.verify_letter",
}


def gold_check(reward_fn: str | Callable[..., Any]) -> Callable[[Any], str | None] | None:
    """The check of a reward function's ``answer`` column, to be run at collection; None if it has none.

    The check returns None for an answer that can be matched, else the reason why not.
    """
    if isinstance(reward_fn, str):
        module, _, name = reward_fn.rpartition(".")
    else:
        module, name = getattr(reward_fn, "__module__", "") or "", getattr(reward_fn, "__name__", "")
    if name not in _CHECKS or not f"{module}.".startswith(f"{_HOME}."):
        return None
    check: Callable[[Any], str | None] = import_from_string(_CHECKS[name])
    return check
