"""Places among the episodes in flight: given up while graded, taken again before a further request."""

from __future__ import annotations

import asyncio

from support.rule_engine import RuleEngine

from pytest_areal_eval.api import GenerationHyperparameters, ModelRequest
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.controller.place import Places
from pytest_areal_eval.workflows import context


class AskThenGrade:
    """Asks ``requests`` times and is away for ``graded_s`` after each."""

    def __init__(self, requests: int, graded_s: float) -> None:
        self.requests, self.graded_s = requests, graded_s

    async def arun_episode(self, engine, data):  # type: ignore[no-untyped-def]
        for _ in range(self.requests):
            messages = [{"role": "user", "content": "q"}]
            await engine.agenerate(ModelRequest(messages=messages, gconfig=GenerationHyperparameters()))
            with context.get().place.away():
                await asyncio.sleep(self.graded_s)
        return 1.0


def run(engine: RuleEngine, workflow: AskThenGrade, items: int, concurrency: int) -> list[float]:
    with RolloutController(engine, settings=ControllerSettings(max_concurrency=concurrency)) as controller:
        controller.initialize()
        ids = [controller.submit({}, workflow) for _ in range(items)]
        return [rollout.reward for rollout in controller.wait(ids=ids, timeout=30)]


def test_an_episode_that_is_graded_leaves_its_place_to_the_next() -> None:
    engine = RuleEngine(lambda question, number: "a")
    with RolloutController(engine, settings=ControllerSettings(max_concurrency=1)) as controller:
        controller.initialize()
        controller.submit({}, AskThenGrade(1, graded_s=60))
        second = controller.submit({}, AskThenGrade(1, graded_s=0))
        assert [r.task_id for r in controller.wait(ids=[second], timeout=10)] == [second]
        assert engine.requests == 2
        controller.cancel()


def test_who_comes_back_for_a_further_request_waits_for_a_place() -> None:
    engine = RuleEngine(lambda question, number: "a", latency_s=0.01)
    assert run(engine, AskThenGrade(3, graded_s=0.02), items=30, concurrency=4) == [1.0] * 30
    assert engine.peak == 4
    assert engine.requests == 90


def test_at_most_as_many_are_away_as_are_in_flight() -> None:
    engine = RuleEngine(lambda question, number: "a")
    with RolloutController(engine, settings=ControllerSettings(max_concurrency=3)) as controller:
        controller.initialize()
        for _ in range(50):
            controller.submit({}, AskThenGrade(1, graded_s=0.5))
        asyncio.run(asyncio.sleep(0.3))
        assert engine.requests <= 6
        controller.cancel()


def test_a_cancelled_wait_takes_no_place_along() -> None:
    async def story() -> int:
        places = Places(lambda: None)
        places.limit = 1
        held = places.take()
        waiting = asyncio.ensure_future(places.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        held.give_up()
        held.give_up()
        return places.free

    assert asyncio.run(story()) == 1
