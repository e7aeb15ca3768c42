from __future__ import annotations

import asyncio
import gc
from typing import Any

import psutil
import pytest

from pytest_areal_eval.api import Score
from pytest_areal_eval.errors import GraderError, GraderTimeout
from pytest_areal_eval.rewards import AsyncRewardWrapper
from pytest_areal_eval.workflows import context


class RecordingPool:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def grade(self, fn: Any, args: Any, kwargs: Any, **options: Any) -> Score:
        self.calls.append((fn, args, kwargs, options))
        return Score(0.5, {"turns": 1.0})


def test_within_an_episode_the_controller_s_pool_grades() -> None:
    pool = RecordingPool()

    async def episode() -> tuple[float, Score]:
        context.set(context.WorkflowContext(evaluation="gsm8k", item_id="0042", episode_index=3, reward_pool=pool))
        wrapper = AsyncRewardWrapper("my.reward", timeout_seconds=5)
        return await wrapper("p", "c", [1], [2], answer="4"), await wrapper.score("p", "c", [1], [2], self="me")

    assert asyncio.run(episode()) == (0.5, Score(0.5, {"turns": 1.0}))
    fn, args, kwargs, options = pool.calls[0]
    assert (fn, args, kwargs) == ("my.reward", ("p", "c", [1], [2]), {"answer": "4"})
    assert options == {"where": "gsm8k[0042] episode 3", "timeout_s": 5, "reward_range": (0.0, 1.0)}
    assert pool.calls[1][2] == {"self": "me"}


def test_outside_an_episode_it_has_a_pool_of_its_own_until_it_is_closed_or_forgotten() -> None:
    wrapper = AsyncRewardWrapper(lambda *args, **columns: columns["answer"] / 4, max_workers=1)
    assert asyncio.run(wrapper("p", "c", [], [], answer=3)) == 0.75
    wrapper.close()
    assert not keepers()
    assert asyncio.run(wrapper("p", "c", [], [], answer=2)) == 0.5
    assert len(keepers()) == 1
    del wrapper
    gc.collect()
    assert not keepers()


def test_faults_are_raised_and_not_retried() -> None:
    """A hang costs its limit once, not four times; neither is turned into a reward of 0."""
    wrapper = AsyncRewardWrapper("time.sleep", timeout_seconds=0.5)
    try:
        with pytest.raises(GraderTimeout, match=r"reward: .*'time.sleep' did not return within 0\.5 s"):
            asyncio.run(wrapper(60))
        with pytest.raises(GraderError, match="raised TypeError"):
            asyncio.run(wrapper("60"))
    finally:
        wrapper.close()


def keepers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "rewards.keeper" in " ".join(p.cmdline())]
