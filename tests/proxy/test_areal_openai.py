"""AReaL's OpenAI client, which workflows make of the engine that they are given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from standin.engine import LocalEngine

from pytest_areal_eval.api import Episode, EpisodeStatus, GenerationHyperparameters
from pytest_areal_eval.controller import RolloutController

openai = pytest.importorskip("openai")

from pytest_areal_eval.areal_shim.openai import ArealOpenAI  # noqa: E402

QUESTION = [{"role": "user", "content": "6*7?"}]


def episode(body: Callable[[Any, dict[str, Any]], Awaitable[Any]], engine: LocalEngine | None = None) -> Episode:
    with RolloutController(engine or LocalEngine()) as controller:
        controller.initialize()
        gconfig = GenerationHyperparameters(greedy=True, max_new_tokens=77)
        (rollout,) = controller.rollout_batch([{}], body, gconfig=gconfig)
    return rollout.episodes[0]


def test_rewards_go_to_answers_and_the_last_ones_is_the_episodes() -> None:
    seen: list[Any] = []

    async def body(engine: Any, data: dict[str, Any]) -> Any:
        client = ArealOpenAI(engine=engine, tokenizer=None, tool_call_parser="qwen25")
        settings = GenerationHyperparameters(max_new_tokens=9).to_openai_args_dict()
        first = await client.chat.completions.create(messages=QUESTION, **settings)
        second = await client.responses.create(input="6*7?")
        client.set_reward(first.id, 0.25)
        client.set_last_reward(float(second.output_text == "42"))
        seen.append([first.choices[0].message.content, client.get_interaction(first.id)])
        discounted = client.apply_reward_discount(turn_discount=0.5)
        seen.append([(key, one.reward) for key, one in discounted.items()] == [(first.id, 0.75), (second.id, 1.0)])
        return client.export_interactions(style="individual")

    engine = LocalEngine()
    found = episode(body, engine)
    assert (found.status, found.reward, found.requests, found.error) == (EpisodeStatus.SCORED, 1.0, 2, "")
    assert found.metrics == {"interactions": 2.0}
    assert [call["content"] for call in found.transcript] == ["42", "42"]
    assert [request.gconfig.max_new_tokens for request in engine.requests] == [9, 77]
    assert seen[0][0] == "42"
    assert (seen[0][1].text, seen[1]) == ("42", True)


def test_a_stream_is_a_stream() -> None:
    async def body(engine: Any, data: dict[str, Any]) -> Any:
        client = ArealOpenAI(engine)
        parts = await client.chat.completions.create(model="default", messages=QUESTION, stream=True)
        text = "".join([part.choices[0].delta.content or "" async for part in parts if part.choices])
        return float(text == "42")

    assert episode(body).reward == 1.0


def test_what_the_engine_refuses_is_the_sdks_error() -> None:
    async def body(engine: Any, data: dict[str, Any]) -> Any:
        client = ArealOpenAI(engine)
        with pytest.raises(openai.BadRequestError, match="max_completion_tokens"):
            await client.chat.completions.create(model="default", messages=QUESTION, max_completion_tokens="many")
        with pytest.raises(openai.NotFoundError, match="there are /chat/completions"):
            await client.embeddings.create(model="default", input="x")
        return 1.0

    assert episode(body).error == ""


def test_a_limit_of_tokens_holds_for_prompt_and_answer() -> None:
    async def body(engine: Any, data: dict[str, Any]) -> Any:
        client = ArealOpenAI(engine, engine_max_tokens=30)
        await client.chat.completions.create(model="default", messages=QUESTION)
        return 1.0

    engine = LocalEngine()
    assert episode(body, engine).error == ""
    assert [request.gconfig.max_new_tokens for request in engine.requests] == [30]


async def _misuse(engine: Any, data: dict[str, Any]) -> Any:
    client = ArealOpenAI(engine)
    with pytest.raises(KeyError, match="has not answered yet"):
        client.set_last_reward(1.0)
    with pytest.raises(KeyError, match="no answer has the id 'x'"):
        client.set_reward("x", 1.0)
    with pytest.raises(ValueError, match="Invalid export style 'tree'"):
        client.export_interactions(style="tree")
    with pytest.raises(TypeError, match="engine that arun_episode is called with"):
        ArealOpenAI(object())  # type: ignore[arg-type]
    await client.chat.completions.create(model="default", messages=QUESTION)
    return client.export_interactions()


def test_answers_without_a_reward_are_a_graders_fault_and_misuse_is_told() -> None:
    found = episode(_misuse)
    assert (found.status, found.reward) == (EpisodeStatus.GRADER_ERROR, 0.0)
    assert "none of the 1 interactions has a reward" in found.error
