"""AReaL's wrapper around a reward function: every finite reward is one, -1 and 10 as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_areal_eval.rewards import wrapper


class AsyncRewardWrapper(wrapper.AsyncRewardWrapper):
    """As :class:`pytest_areal_eval.rewards.AsyncRewardWrapper`, without a range."""

    def __init__(
        self,
        reward_fn: str | Callable[..., Any],
        timeout_seconds: float | None = None,
        max_workers: int | None = None,
        max_retries: int = 3,
    ) -> None:
        super().__init__(reward_fn, timeout_seconds, max_workers, max_retries, reward_range=None)
