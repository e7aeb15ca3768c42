"""Agents as workflows: what they are handed, what their return means, and what their faults cost."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from typing import Any

import pytest
from standin.engine import LocalEngine
from support import sdk_agents

from pytest_areal_eval.api import Episode, EpisodeStatus, GenerationHyperparameters, ModelRequest, ModelResponse
from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.rewards.processes import descendants
from pytest_areal_eval.workflows.agent import AgentOptions, AgentWorkflow
from pytest_areal_eval.workflows.base import resolve_workflow

pytest.importorskip("openai")


def run(
    agent: Any,
    *questions: str,
    engine: LocalEngine | None = None,
    kwargs: dict[str, Any] | None = None,
    events: list[Event] | None = None,
    **options: Any,
) -> list[Episode]:
    """An episode for each question; the right answer is "42"."""
    on_event = None if events is None else events.append
    settings = ControllerSettings(max_attempts=1)
    with RolloutController(engine or LocalEngine(), settings=settings, on_event=on_event) as controller:
        controller.initialize()
        rows = [{"q": question, "answer": "42"} for question in questions or ("6*7?",)]
        return [r.episodes[0] for r in controller.rollout_batch(rows, agent, kwargs, **options)]


@pytest.mark.parametrize(
    "agent",
    [
        "support.sdk_agents.Chat",
        sdk_agents.Chat,
        sdk_agents.Chat(),
        sdk_agents.Closes,
        AgentWorkflow(sdk_agents.Chat(), mode="inline"),
        AgentWorkflow(sdk_agents.Chat, mode="inline"),
        sdk_agents.Environment,
    ],
    ids=["name", "class", "instance", "closes its client", "inline", "inline class", "environment"],
)
def test_an_agent_talks_to_the_engine_and_returns_its_reward(agent: Any) -> None:
    engine = LocalEngine()
    episodes = run(agent, "a", "b", "c", engine=engine)
    assert [(e.status, e.reward, e.requests, e.error) for e in episodes] == [(EpisodeStatus.SCORED, 1.0, 1, "")] * 3
    assert sorted(str(request.messages) for request in engine.requests) == [
        str([{"role": "user", "content": question}]) for question in "abc"
    ]


def test_the_evaluations_sampling_holds_where_the_agent_is_silent() -> None:
    engine = LocalEngine()
    gconfig = GenerationHyperparameters(greedy=True, max_new_tokens=77, top_p=0.9)
    run(sdk_agents.Chat, engine=engine, gconfig=gconfig)
    run(sdk_agents.Chat, engine=engine, gconfig=gconfig, kwargs={"temperature": 0.5, "max_tokens": 5, "stop": "x"})
    silent, outspoken = (request.gconfig for request in engine.requests)
    assert (silent.greedy, silent.max_new_tokens, silent.top_p) == (True, 77, 0.9)
    assert (outspoken.greedy, outspoken.temperature, outspoken.max_new_tokens) == (False, 0.5, 5)
    assert (outspoken.top_p, outspoken.stop) == (0.9, ["x"])


def test_as_areals_subproc_an_agent_finds_its_address_in_its_environment() -> None:
    workflow = resolve_workflow(sdk_agents.Either, agents=AgentOptions(mode="environment"))
    assert [e.metrics["keywords"] for e in run(workflow)] == [0]
    assert [e.metrics["keywords"] for e in run(sdk_agents.Either)] == [3]


@pytest.mark.parametrize(("processes", "together"), [(None, 6), (2, 2)])
def test_agents_with_a_process_each_are_as_many_as_episodes_in_flight(processes: int | None, together: int) -> None:
    """AReaL has four of them at a time, whatever the concurrency; a synchronous client blocks none but itself."""
    all_here = asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        if engine.in_flight == together:
            await asyncio.sleep(0.2)  # more would arrive now
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 30)
        return "42"

    engine = LocalEngine(answer)
    episodes = run(AgentWorkflow(sdk_agents.Blocking, processes=processes), *"abcdef", engine=engine)
    assert [e.reward for e in episodes] == [1.0] * 6, [e.error for e in episodes]
    assert engine.peak == together


def test_a_blocked_agent_with_a_process_of_its_own_is_ended_at_its_time_limit_alone() -> None:
    async def answer(request: ModelRequest) -> str:
        if "hang" in str(request.messages):
            await asyncio.sleep(60)
        return "42"

    agent = AgentWorkflow(sdk_agents.Blocking, processes=1)
    with RolloutController(LocalEngine(answer), settings=ControllerSettings(max_attempts=1)) as controller:
        controller.initialize()
        limits_s = {"hang": 3.0, "go on": 30.0}
        for question, limit_s in limits_s.items():
            controller.submit({"q": question, "answer": "42"}, agent, timeout_s=limit_s)
        first, second = (rollout.episodes[0] for rollout in controller.wait(2, 60))
    assert (first.status, second.status) == (EpisodeStatus.TIMEOUT, EpisodeStatus.SCORED), second.error


def test_a_configured_limit_of_tokens_cuts_the_agents_requests() -> None:
    engine = LocalEngine()
    run(AgentWorkflow(sdk_agents.Chat, max_tokens=20), engine=engine, gconfig=GenerationHyperparameters(max_tokens=50))
    run(AgentWorkflow(sdk_agents.Chat, max_tokens=99), engine=engine, gconfig=GenerationHyperparameters(max_tokens=50))
    assert [request.gconfig.max_tokens for request in engine.requests] == [20, 50]


def test_the_last_answer_that_has_a_reward_counts() -> None:
    (episode,) = run(sdk_agents.Ids)
    assert (episode.reward, episode.requests) == (0.25, 2)


def test_a_reward_for_an_answer_that_never_was_is_an_error() -> None:
    (episode,) = run(sdk_agents.Ids, kwargs={"chatcmpl-nonsense": 1.0})
    assert episode.status is EpisodeStatus.GRADER_ERROR
    assert "'chatcmpl-nonsense' is the id of none; the answers are chatcmpl-" in episode.error


@pytest.mark.parametrize("agent", [sdk_agents.Silent, AgentWorkflow(sdk_agents.Silent(), mode="inline")])
def test_an_agent_that_never_calls_the_model_is_an_error(agent: Any) -> None:
    """AReaL drops such a row from the mean."""
    (episode,) = run(agent)
    assert (episode.status, episode.reward) == (EpisodeStatus.WORKFLOW_ERROR, None)
    assert "sdk_agents.Silent ended without a single answer of the model" in episode.error


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "ValueError: no such luck"),
        ("exits", "SystemExit: 3"),
        ("dies", "agent support.sdk_agents.Broken: its process ended with exit status 7"),
        ("babbles", "agent support.sdk_agents.Broken: its process was killed by SIGKILL"),
        ("returns", "TypeError: the agent returned a object; return a number"),
    ],
)
def test_a_broken_agent_costs_its_own_episode(how: str, said: str) -> None:
    (episode,) = run(sdk_agents.Broken, kwargs={"how": how})
    assert episode.status is EpisodeStatus.WORKFLOW_ERROR
    assert said in episode.error
    if how == "raises":
        assert re.search(r'sdk_agents.py", line \d+, in run\n\s+raise ValueError', episode.traceback)


def test_a_request_that_the_engine_refuses_tells_its_own_reason() -> None:
    """A prompt that is too long is that, and not the SDK's exception."""

    async def answer(request: ModelRequest) -> str:
        raise RuntimeError("never asked")

    engine = LocalEngine(answer, context_length=8)
    gconfig = GenerationHyperparameters(max_tokens=0)
    (episode,) = run(sdk_agents.Chat, engine=engine, gconfig=gconfig)
    assert episode.status is EpisodeStatus.PROMPT_TOO_LONG


def test_a_time_limit_ends_the_agent_and_its_request() -> None:
    async def answer(request: ModelRequest) -> str:
        await asyncio.sleep(60)
        return ""

    engine = LocalEngine(answer)
    began = time.monotonic()
    (episode,) = run(sdk_agents.Chat, engine=engine, timeout_s=3.0)
    assert episode.status is EpisodeStatus.TIMEOUT
    assert engine.in_flight == 0
    assert time.monotonic() - began < 15


def test_an_agent_that_blocks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_areal_eval.agents.hosts.BLOCKED_LIMIT_S", 5.0)
    events: list[Event] = []
    (episode,) = run(sdk_agents.Broken, "block", kwargs={"how": "blocks"}, events=events)
    who = r"agent support\.sdk_agents\.Broken, item '0' blocks its event loop for \d+ s"
    where = who + r" at \S+sdk_agents\.py:\d+ in run\(\)"
    assert episode.status is EpisodeStatus.WORKFLOW_ERROR
    assert re.search(where, episode.error)
    assert any(event.kind == "warning" and re.search(where, event.text) for event in events)


def test_the_transcript_keeps_every_call_and_repeats_none() -> None:
    answers = iter(['<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>', "42"])

    async def answer(request: ModelRequest) -> ModelResponse:
        return ModelResponse(text=next(answers), input_count=10, output_count=3)

    (episode,) = run(sdk_agents.Calculator, engine=LocalEngine(answer))
    assert (episode.reward, episode.input_tokens, episode.output_tokens) == (1.0, 20, 6)
    first, second = episode.transcript
    assert [m["role"] for m in first["messages"]] == ["user"]
    assert (first["tool_calls"][0]["name"], first["stop_reason"], first["tools"]) == ("add", "tool_calls", ["add"])
    assert (second["repeated"], [m["role"] for m in second["messages"]]) == (1, ["assistant", "tool"])
    assert (second["content"], second["messages"][1]["content"]) == ("42", "42")


def test_nothing_of_the_agents_is_left_after_the_run() -> None:
    threads, children = set(threading.enumerate()), set(descendants(os.getpid()))
    with RolloutController(LocalEngine()) as controller:
        controller.initialize()
        controller.rollout_batch([{"q": "x", "answer": "42"}], sdk_agents.Chat)
        assert set(descendants(os.getpid())) > children
    assert set(descendants(os.getpid())) == children
    assert set(threading.enumerate()) <= threads


class NoRun:
    """Neither workflow nor agent."""


class SyncRun:
    def run(self, data: dict[str, Any]) -> float:
        return 1.0


class Unpicklable:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    async def run(self, data: dict[str, Any], **where: Any) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("agent", "kwargs", "said"),
    [
        (NoRun, {}, "NoRun has no 'async def arun_episode(self, engine, data)' and no 'async def run("),
        (SyncRun, {}, r"SyncRun: its 'run' is not async"),
        (Unpicklable(), {}, r"Unpicklable: .* cannot be sent to another process.*\n.*mode='inline'"),
        (Unpicklable, {"x": 1}, r"unexpected keyword argument 'x'|too many keyword"),
        (AgentWorkflow, {"agent": sdk_agents.Environment, "mode": "inline"}, "takes no base_url"),
    ],
)
def test_what_is_no_agent_is_one_message(agent: Any, kwargs: dict[str, Any], said: str) -> None:
    pattern = said if "\\" in said or ".*" in said or "|" in said else re.escape(said)
    with pytest.raises(ConfigError, match=pattern):
        resolve_workflow(agent, kwargs)
