"""What agents record with ``stats_tracker`` in a process of their own, under AReaL's names too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from standin.engine import LocalEngine

from pytest_areal_eval import areal_shim
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


THEIRS = """
from areal import workflow_context
from areal.api.workflow_api import AgentWorkflow
from areal.utils import stats_tracker

class Theirs(AgentWorkflow):
    async def run(self, data, **extra_kwargs):
        session = await workflow_context.get_aiohttp_session()
        url = f"{extra_kwargs['base_url']}/chat/completions"
        body = {"model": "default", "messages": [{"role": "user", "content": "6*7?"}]}
        headers = {"Authorization": f"Bearer {extra_kwargs['api_key']}"}
        async with session.post(url, json=body, headers=headers) as reply:
            text = (await reply.json())["choices"][0]["message"]["content"]
        stats_tracker.get(workflow_context.stat_scope()).scalar(characters=len(text))
        return float(text == "42")
"""


def test_an_agent_written_for_areal_finds_areals_names_in_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_agent.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    areal_shim.install()
    try:
        with RolloutController(LocalEngine()) as controller:
            controller.initialize()
            (rollout,) = controller.rollout_batch([{}], "their_agent.Theirs")
            stats = controller.export_stats()
    finally:
        areal_shim.uninstall()
    assert (rollout.episodes[0].reward, rollout.episodes[0].error) == (1.0, "")
    assert stats["eval-rollout/characters"] == 2.0
