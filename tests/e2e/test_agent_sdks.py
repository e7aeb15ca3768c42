"""Agents with real SDKs on the real checkpoint; each has to solve what the model can solve."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.sessions import TINY

from pytest_areal_eval.api import GenerationHyperparameters
from pytest_areal_eval.checkpoint import load_tokenizer
from pytest_areal_eval.controller import RolloutController
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.schedulers.local import LocalScheduler

EVALS = TINY.parent.parent / "evals"
sys.path.append(str(EVALS))
GREEDY = GenerationHyperparameters(greedy=True, max_new_tokens=200)

CLIENTS = [
    ("openai", "calculator_agent.CalculatorAgent", {}),
    ("agents", "support.calculators.AgentsSdk", {}),
    ("agents", "support.calculators.AgentsSdk", {"streamed": True}),
    ("agents", "support.calculators.AgentsSdk", {"chat": True}),
    ("anthropic", "support.calculators.Anthropic", {}),
    ("anthropic", "support.calculators.Anthropic", {"streamed": True}),
    ("langchain_openai", "support.calculators.LangChain", {}),
    ("langgraph", "support.calculators.LangGraph", {}),
]


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutController]:
    scheduler = LocalScheduler(log_dir=tmp_path_factory.mktemp("logs"))
    with RolloutController(HFEngine(str(TINY)), scheduler, tokenizer=lambda: load_tokenizer(str(TINY))) as made:
        made.initialize()
        yield made
    scheduler.close()


def records(count: int, *, division: bool = True) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (EVALS / "data/arithmetic.jsonl").read_text().splitlines()]
    rows = [row for row in rows if division or "/" not in row["answer"]][:count]
    return [row | {"messages": [{"role": "user", "content": row["question"]}]} for row in rows]


@pytest.mark.parametrize(
    ("package", "agent", "kwargs"), CLIENTS, ids=[f"{c[1].rpartition('.')[2]}-{'-'.join(c[2])}" for c in CLIENTS]
)
def test_a_calculator_with_any_sdk_solves_the_problems(
    controller: RolloutController, package: str, agent: str, kwargs: dict[str, Any]
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}, of the extra 'agents'")
    rollouts = controller.rollout_batch(records(10), agent, kwargs, gconfig=GREEDY, timeout_s=60)
    episodes = [rollout.episodes[0] for rollout in rollouts]
    assert not [episode.error + episode.traceback for episode in episodes if episode.error]
    assert sum(episode.counted_reward for episode in episodes) > 0.9 * len(episodes)
    called = [call["name"] for episode in episodes for entry in episode.transcript for call in entry["tool_calls"]]
    assert {"add", "multiply"} <= set(called)


def test_an_agent_written_for_areal_runs_unmodified(controller: RolloutController) -> None:
    """It adds and multiplies alone; the model, who wants to divide too, solves what needs no division."""
    if importlib.util.find_spec("agents") is None:
        pytest.skip("needs openai-agents, of the extra 'agents'")
    rollouts = controller.rollout_batch(
        records(16, division=False), "support.areal_math_agent.MathAgent", gconfig=GREEDY, timeout_s=120
    )
    assert not [episode.error for rollout in rollouts for episode in rollout.episodes if episode.error]
    assert sum(rollout.reward for rollout in rollouts) > 0.9 * len(rollouts)
