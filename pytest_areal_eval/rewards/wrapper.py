"""AReaL's way to call a reward function from a workflow, on the pool that kills what hangs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from pytest_areal_eval.api import Score
from pytest_areal_eval.rewards.pool import RewardPool
from pytest_areal_eval.rewards.values import DEFAULT_RANGE
from pytest_areal_eval.workflows import context


class AsyncRewardWrapper:
    """``await wrapper(prompt, completions, prompt_ids, completion_ids, **columns)`` gives the reward.

    Within an episode the controller's pool grades; elsewhere a pool of the wrapper's own, made when it is first needed.

    Args:
        reward_fn: a dotted name or any callable, a coroutine function too.
        timeout_seconds: limit of one call; None takes the pool's, which is AReaL's 15 s unless it was told otherwise.
        max_workers: processes of the pool that the wrapper makes for itself; the controller's pool has its own number.
        max_retries: accepted for AReaL's sake and not used: a grader that failed once fails again, and AReaL's four
            attempts turn a 15 s hang into one of 60 s.
        reward_range: lowest and highest reward; None allows every finite number.
    """

    def __init__(
        self,
        reward_fn: str | Callable[..., Any],
        timeout_seconds: float | None = None,
        max_workers: int | None = None,
        max_retries: int = 3,
        *,
        reward_range: tuple[float, float] | None = DEFAULT_RANGE,
    ) -> None:
        self.reward_fn = reward_fn
        self.timeout_seconds = timeout_seconds
        self.max_workers = max_workers
        self.max_retries = max_retries
        self.reward_range = reward_range
        self._own: RewardPool | None = None

    async def __call__(self, /, *args: Any, **kwargs: Any) -> float:
        """The reward.  Raises :class:`GraderTimeout` and :class:`GraderError` where AReaL returns 0."""
        return (await self.score(*args, **kwargs)).value

    async def score(self, /, *args: Any, **kwargs: Any) -> Score:
        """The reward with its metrics and the answers that were compared."""
        episode = context.get()
        pool: RewardPool = episode.reward_pool or self._pool()
        named = f"{episode.evaluation}[{episode.item_id}] episode {episode.episode_index}"
        with episode.place.away() if episode.place is not None else nullcontext():
            return await pool.grade(
                self.reward_fn,
                args,
                kwargs,
                where=named if episode.item_id else "reward",
                timeout_s=self.timeout_seconds,
                reward_range=self.reward_range,
            )

    def close(self) -> None:
        """Close the wrapper's own pool, if it made one; the next call makes another."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _pool(self) -> RewardPool:
        if self._own is None:
            self._own = RewardPool(self.max_workers)
            weakref.finalize(self, self._own.close)  # workflows, and their wrappers, may be made anew for each item
        return self._own
