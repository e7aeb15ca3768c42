"""What agents record with ``stats_tracker`` in a process of their own."""

from __future__ import annotations

from typing import Any

from standin.engine import LocalEngine

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.controller import RolloutController
from pytest_areal_eval.stats import tracker
from pytest_areal_eval.workflows import context


class Recording:
    """Records before it fails: what it has recorded by then is not lost."""

    async def run(self, data: dict[str, Any], **_: Any) -> float:
        """Record, then raise."""
        tracker.get(context.stat_scope()).scalar(turns=data["turns"])
        raise RuntimeError(f"after {data['turns']}")


def test_an_agents_own_statistics_reach_export_stats() -> None:
    with RolloutController(LocalEngine()) as controller:
        controller.initialize()
        rollouts = controller.rollout_batch([{"turns": 2}, {"turns": 4}], Recording)
        stats = controller.export_stats()
    assert [r.episodes[0].status for r in rollouts] == [EpisodeStatus.WORKFLOW_ERROR] * 2
    assert rollouts[1].episodes[0].error == "RuntimeError: after 4"
    assert rollouts[1].episodes[0].stats["eval-rollout/turns"]["sum"] == 4.0
    assert (stats["eval-rollout/turns"], stats["eval-rollout/turns__count"]) == (3.0, 2)
    assert (stats["eval-rollout/accepted"], stats["eval-rollout/rejected"]) == (0.0, 2.0)
