"""How an episode ends: every way has one status, and the record tells, not the workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from standin.engine import LocalEngine
from standin.tokens import ByteTokenizer

from pytest_areal_eval.api import (
    Episode,
    EpisodeStatus,
    GenerationHyperparameters,
    ModelRequest,
    ModelResponse,
    Score,
)
from pytest_areal_eval.controller import ControllerSettings, EpisodeEngine, RolloutController
from pytest_areal_eval.controller.episodes import episode_seed
from pytest_areal_eval.errors import GraderError, GraderTimeout, RequestError
from pytest_areal_eval.stats import tracker
from pytest_areal_eval.workflows import context

Body = Callable[[Any, dict[str, Any]], Awaitable[Any]]


def run(
    body: Body,
    engine: LocalEngine | None = None,
    item: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    seed: int = 0,
    **options: Any,
) -> Episode:
    """One episode of an ``async def`` workflow."""
    controller = RolloutController(engine or LocalEngine(), tokenizer=tokenizer, settings=ControllerSettings(seed=seed))
    with controller:
        controller.initialize()
        return controller.rollout_batch([item or {"q": "6*7?"}], body, item_id="row-3", **options)[0].episodes[0]


async def ask(engine: EpisodeEngine, item: dict[str, Any]) -> float:
    return float("42" in (await engine.chat([{"role": "user", "content": item["q"]}])).text)


def answering(response: Any) -> LocalEngine:
    async def answer(request: ModelRequest) -> Any:
        return response

    return LocalEngine(answer)


# Statuses


@pytest.mark.parametrize(
    ("response", "status"),
    [
        (ModelResponse(text="42"), EpisodeStatus.SCORED),
        (ModelResponse(text="42 and so", stop_reason="length"), EpisodeStatus.TRUNCATED),
        (ModelResponse(text=""), EpisodeStatus.EMPTY),
        (ModelResponse(text=" \n"), EpisodeStatus.EMPTY),
        (ModelResponse(text="", stop_reason="length", reasoning="Let me see"), EpisodeStatus.EMPTY),
        (ModelResponse(text="", stop_reason="tool_calls"), EpisodeStatus.SCORED),
        (ModelResponse(text="<think>so", stop_reason="length"), EpisodeStatus.UNFINISHED_THINKING),
        (ModelResponse(text="<think>so</think>42"), EpisodeStatus.SCORED),
        (ModelResponse(text="so</think>42"), EpisodeStatus.SCORED),
        (ModelResponse(text="<think>a</think>b<think>c"), EpisodeStatus.UNFINISHED_THINKING),
    ],
)
def test_the_last_answer_decides_how_a_scored_episode_ended(response: ModelResponse, status: EpisodeStatus) -> None:
    """C4, C5, C7: cut off, empty and unfinished answers are told apart from wrong ones."""
    episode = run(ask, answering(response))
    assert episode.status is status
    assert episode.reward is not None
    assert (episode.completion, episode.reasoning) == (response.text, response.reasoning)


def test_thinking_that_the_template_opened_and_nobody_closed_is_unfinished() -> None:
    episode = run(
        ask,
        answering(ModelResponse(text="it is 42")),
        tokenizer=ByteTokenizer(),
        template_kwargs={"enable_thinking": True},
    )
    assert episode.prompt.endswith("<think>\n")
    assert episode.status is EpisodeStatus.UNFINISHED_THINKING


@pytest.mark.parametrize(
    ("error", "status", "reward"),
    [
        (GraderTimeout("item 'row-3': no verdict within 15 s"), EpisodeStatus.GRADER_TIMEOUT, 0.0),
        (GraderError("item 'row-3': ValueError"), EpisodeStatus.GRADER_ERROR, 0.0),
        (RequestError("replica/0 answered 400"), EpisodeStatus.WORKFLOW_ERROR, None),
        (KeyError("question"), EpisodeStatus.WORKFLOW_ERROR, None),
        (TimeoutError("a tool took too long"), EpisodeStatus.WORKFLOW_ERROR, None),
        (asyncio.CancelledError(), EpisodeStatus.WORKFLOW_ERROR, None),
        (SystemExit(3), EpisodeStatus.WORKFLOW_ERROR, None),
        (KeyboardInterrupt(), EpisodeStatus.WORKFLOW_ERROR, None),
        (ExceptionGroup("tasks", [GraderTimeout("late")]), EpisodeStatus.GRADER_TIMEOUT, 0.0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_what_a_workflow_raises_ends_its_episode_alone(
    error: BaseException, status: EpisodeStatus, reward: float | None
) -> None:
    """C1, C12: an error is never a score, and a grader's fault is never the model's silent zero."""

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        await ask(engine, item)
        raise error

    episode = run(body)
    assert (episode.status, episode.reward) == (status, reward)
    assert episode.error
    assert episode.completion == "42"


def test_an_error_keeps_the_users_frames_and_not_ours() -> None:
    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        return float(item["answer"])

    episode = run(body)
    assert episode.error == "KeyError: 'answer'"
    assert 'return float(item["answer"])' in episode.traceback
    assert "pytest_areal_eval/controller" not in episode.traceback


@pytest.mark.parametrize(
    ("value", "reward", "metrics"),
    [
        (1, 1.0, {}),
        (True, 1.0, {}),
        (Score(0.5, {"steps": 3.0}), 0.5, {"steps": 3.0}),
        ({"rewards": [0.25], "turns": 2}, 0.25, {"turns": 2.0}),
        ({"reward": 0.0}, 0.0, {}),
    ],
)
def test_what_a_workflow_returns_is_the_reward(value: Any, reward: float, metrics: dict[str, float]) -> None:
    """C11: 0.0 is a reward."""

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> Any:
        return value

    episode = run(body)
    assert (episode.status, episode.reward, dict(episode.metrics)) == (EpisodeStatus.SCORED, reward, metrics)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "good", object()])
def test_what_is_no_reward_is_an_error_that_names_the_item(value: Any) -> None:
    """C1: NaN and its like never reach a mean."""

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> Any:
        return value

    episode = run(body)
    assert episode.status is EpisodeStatus.GRADER_ERROR
    assert "row-3" in episode.error


def test_none_rejects_the_episode() -> None:
    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> None:
        await ask(engine, item)

    episode = run(body)
    assert (episode.status, episode.reward) == (EpisodeStatus.REJECTED, None)


# Requests


def test_a_prompt_that_fills_the_context_is_never_sent() -> None:
    engine = LocalEngine(context_length=20)
    episode = run(ask, engine, {"q": "x" * 30}, tokenizer=ByteTokenizer())
    assert episode.status is EpisodeStatus.PROMPT_TOO_LONG
    assert "the model's context length is 20" in episode.error
    assert engine.requests == []


@pytest.mark.parametrize(
    ("max_new_tokens", "max_tokens", "context", "sent"),
    [(16, 1000, 1000, 16), (500, 100, 1000, 61), (500, 1000, 100, 61), (500, 1000, None, 500), (9, 40, 40, 1)],
)
def test_an_answer_is_cut_to_what_the_prompt_leaves(
    max_new_tokens: int, max_tokens: int, context: int | None, sent: int
) -> None:
    engine = LocalEngine(context_length=context)
    gconfig = GenerationHyperparameters(max_new_tokens=max_new_tokens, max_tokens=max_tokens)
    run(ask, engine, {"q": "x" * 14}, tokenizer=ByteTokenizer(), gconfig=gconfig)
    assert len(engine.requests[0].input_ids) == 39
    assert engine.requests[0].gconfig.max_new_tokens == sent


def test_a_tokenizer_of_the_workflows_own_that_cannot_decode_costs_its_episode() -> None:
    class Picky:
        pad_token_id = eos_token_id = 0

        def decode(self, ids: Any) -> str:
            return ""

    async def episode(engine: Any, item: dict[str, Any]) -> float:
        await engine.agenerate(ModelRequest(input_ids=[1], tokenizer=Picky()))
        return 1.0

    async def answer(request: ModelRequest) -> ModelResponse:
        return ModelResponse(output_tokens=[4])

    with RolloutController(LocalEngine(answer)) as controller:
        controller.initialize()
        task = controller.submit({}, episode)
        (rollout,) = controller.wait(ids=[task], timeout=30)
    assert rollout.episodes[0].status is EpisodeStatus.WORKFLOW_ERROR
    assert "decode() got an unexpected keyword argument 'skip_special_tokens'" in rollout.episodes[0].error


def test_the_workflows_request_is_not_changed() -> None:
    request = ModelRequest(input_ids=[1, 2], gconfig=GenerationHyperparameters(max_new_tokens=500, max_tokens=10))

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        await engine.agenerate(request)
        return 1.0

    engine = LocalEngine()
    assert run(body, engine).status is EpisodeStatus.SCORED
    assert (request.gconfig.max_new_tokens, request.gconfig.seed) == (500, None)
    assert engine.requests[0].gconfig.max_new_tokens == 8


def test_one_request_may_be_sent_several_times_at_once() -> None:
    """AReaL's workflows do so for their samples; servers refuse a second request of the same id."""
    request = ModelRequest(rid="row-3", input_ids=[1, 2])

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        await asyncio.gather(*(engine.agenerate(request) for _ in range(3)))
        return 1.0

    engine = LocalEngine()
    run(body, engine, group_size=2)
    sent = {sent.rid for sent in engine.requests}
    assert len(sent) == 6
    assert all(rid.startswith("row-3-") for rid in sent)
    assert request.rid == "row-3"
    assert len({sent.gconfig.seed for sent in engine.requests}) == 6


def test_several_samples_in_one_request_are_refused() -> None:
    """C82: one request is one sample."""

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        await engine.agenerate(ModelRequest(input_ids=[1], gconfig=GenerationHyperparameters(n_samples=4)))
        return 1.0

    assert "one request is one sample" in run(body).error


def test_chat_uses_the_evaluations_sampling_and_the_calls_overrides() -> None:
    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        await engine.chat([{"role": "user", "content": "a"}], temperature=0.5)
        return 1.0

    engine = LocalEngine()
    gconfig = GenerationHyperparameters(n_samples=8, top_p=0.9, temperature=0.7)
    run(body, engine, gconfig=gconfig, tokenizer=ByteTokenizer())
    sent = engine.requests[0].gconfig
    assert (sent.n_samples, sent.top_p, sent.temperature) == (1, 0.9, 0.5)
    assert sent.stop_token_ids == [257, 256]


@pytest.mark.parametrize(
    ("overrides", "temperature"),
    [({}, 0.0), ({"temperature": 0.7}, 0.7), ({"temperature": 0}, 0.0), ({"temperature": 0.7, "greedy": True}, 0.0)],
)
def test_a_temperature_for_one_request_outdoes_an_evaluation_that_is_greedy(
    overrides: dict[str, Any], temperature: float
) -> None:
    """As an agent's does; one sample an item is greedy by default, and nothing said that 0.7 had no effect."""

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        request = engine.chat_request([{"role": "user", "content": "a"}], **overrides)
        return request.gconfig.effective_temperature

    greedy = GenerationHyperparameters(greedy=True, temperature=0.0)
    assert run(body, gconfig=greedy).reward == temperature


def test_one_stop_string_is_a_string_and_not_its_letters() -> None:
    """C65: every answer ended at the first of them."""

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        await engine.chat([{"role": "user", "content": "a"}], stop="Question:")
        return 1.0

    engine = LocalEngine()
    run(body, engine, tokenizer=ByteTokenizer())
    assert engine.requests[0].gconfig.stop == ["Question:"]
    assert GenerationHyperparameters(stop="48.").new(n_samples=1).stop == ["48."]  # type: ignore[arg-type]


def test_chat_without_a_tokenizer_leaves_the_template_to_the_server() -> None:
    engine = LocalEngine()
    episode = run(ask, engine, template_kwargs={"enable_thinking": False})
    assert engine.requests[0].messages == [{"role": "user", "content": "6*7?"}]
    assert engine.requests[0].template_kwargs == {"enable_thinking": False}
    assert episode.prompt == "6*7?"


def test_an_unknown_override_is_named() -> None:
    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        await engine.chat([], temprature=0.5)
        return 1.0

    assert "temprature" in run(body).error


@pytest.mark.parametrize("said", ["6*7?", {"role": "user", "content": "6*7?"}, [{"role": "user", "text": "6*7?"}]])
def test_what_is_no_conversation_is_told_what_one_is(said: Any) -> None:
    """The template made an empty prompt of the last."""

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        await engine.chat(said)
        return 1.0

    assert "engine.chat([{'role': 'user', 'content': '...'}]) takes messages" in run(body).error


# Seeds


def test_seeds_depend_on_run_item_and_episode_alone() -> None:
    assert episode_seed(0, "row-3", 0) == episode_seed(0, "row-3", 0)
    assert len({episode_seed(run, item, index) for run in (0, 1) for item in ("a", "b") for index in (0, 1)}) == 8
    assert all(0 <= episode_seed(0, str(i), 0) < 2**31 for i in range(100))


def test_each_request_of_an_episode_has_its_own_seed_and_they_recur() -> None:
    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        for _ in range(3):
            await ask(engine, item)
        return 1.0

    seeds = []
    for _ in range(2):
        engine = LocalEngine()
        episode = run(body, engine, seed=7)
        seeds.append([request.gconfig.seed for request in engine.requests])
        assert seeds[-1][0] == episode.seed
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


@pytest.mark.parametrize(
    "gconfig", [GenerationHyperparameters(greedy=True), GenerationHyperparameters(temperature=0.0)]
)
def test_greedy_requests_get_no_seed(gconfig: GenerationHyperparameters) -> None:
    engine = LocalEngine()
    run(ask, engine, gconfig=gconfig)
    assert engine.requests[0].gconfig.seed is None


def test_a_seed_of_the_request_is_kept() -> None:
    engine = LocalEngine()
    run(ask, engine, gconfig=GenerationHyperparameters(seed=5))
    assert engine.requests[0].gconfig.seed == 5


# Surroundings


def test_an_episode_knows_where_it_is() -> None:
    seen: list[context.WorkflowContext] = []

    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        seen.append(context.get())
        return 1.0

    run(body, group_size=2, evaluation="gsm8k")
    assert [(c.item_id, c.episode_index, c.evaluation, c.is_eval) for c in seen] == [
        ("row-3", 0, "gsm8k", True),
        ("row-3", 1, "gsm8k", True),
    ]
    assert seen[0].rng is not None
    assert seen[1].rng is not None
    assert seen[0].rng.random() != seen[1].rng.random()
    assert seen[0].reward_pool is not None


def test_what_an_episode_changes_in_its_item_stays_its_own() -> None:
    """However deep it lies."""
    row = {"list": [{"of": []}], "tuple": ([],), "set": {0}, "bytes": bytearray()}

    async def grow(engine: Any, item: dict[str, Any]) -> float:
        item["set"].add(len(item["set"]))
        for inner in (item["list"][0]["of"], item["tuple"][0], item["bytes"]):
            inner.append(1)
        return float(len(item["list"][0]["of"]) + len(item["tuple"][0]) + len(item["set"]) + len(item["bytes"]))

    with RolloutController(LocalEngine()) as controller:
        controller.initialize()
        (rollout,) = controller.rollout_batch([row], grow, group_size=2)
    assert [e.reward for e in rollout.episodes] == [5.0, 5.0]
    assert row == {"list": [{"of": []}], "tuple": ([],), "set": {0}, "bytes": bytearray()}


def test_a_workflows_own_statistics_reach_export_stats() -> None:
    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        with tracker.get().record_timing("think"):
            tracker.get(context.stat_scope()).scalar(turns=item["turns"], reward=1.0)
        if item["turns"] == 6:
            raise RuntimeError("too many")
        return 1.0

    with RolloutController(LocalEngine()) as controller:
        controller.initialize()
        rollouts = controller.rollout_batch([{"turns": 2}, {"turns": 4}, {"turns": 6}], body)
        stats = controller.export_stats()
    assert (stats["eval-rollout/turns"], stats["eval-rollout/turns__count"]) == (4.0, 3)
    assert stats["timeperf/think__count"] == stats["timeperf/episode__count"] == 3
    # AReaL's workflows record their reward as well; the episode's own counts, once, and an error's is 0.
    assert (stats["eval-rollout/reward"], stats["eval-rollout/reward__count"]) == (pytest.approx(2 / 3), 3)
    assert (stats["eval-rollout/accepted"], stats["eval-rollout/rejected"]) == (2.0, 1.0)
    recorded = rollouts[0].episodes[0].stats["eval-rollout/turns"]
    assert recorded == {"type": "scalar", "count": 1, "sum": 2.0, "min": 2.0, "max": 2.0}


def test_a_key_that_two_workflows_use_differently_loses_nothing() -> None:
    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> Any:
        if item["kind"] == "own":
            tracker.get("eval-rollout").denominator(length=[True])
            return 1.0
        return {"reward": 1.0, "length": 3.0}

    with RolloutController(LocalEngine()) as controller:
        controller.initialize()
        for kind in ("own", "metric"):
            controller.rollout_batch([{"kind": kind}], body, item_id=kind)
        assert controller.failure is None
        stats = controller.export_stats()
    assert (stats["eval-rollout/length"], stats["eval-rollout/length (scalar)"]) == (1.0, 3.0)


def test_counts_are_summed_over_an_episodes_requests() -> None:
    async def body(engine: EpisodeEngine, item: dict[str, Any]) -> float:
        await ask(engine, item)
        await ask(engine, item)
        return 1.0

    response = ModelResponse(text="42", input_count=10, output_count=3)
    episode = run(body, answering(response))
    assert (episode.requests, episode.attempts) == (2, 2)
    assert (episode.input_tokens, episode.output_tokens) == (20, 6)
    assert episode.replica == "local"
    assert episode.latency_s >= 0
    assert episode.started_at > 1_700_000_000
