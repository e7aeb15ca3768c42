"""Balancing, back-off and time limits, without a server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import pytest

from pytest_areal_eval.api import GenerationHyperparameters, ModelRequest, ModelResponse
from pytest_areal_eval.controller.client import EngineClient, Progress
from pytest_areal_eval.controller.clock import Clock
from pytest_areal_eval.controller.replicas import Replica, Replicas
from pytest_areal_eval.controller.settings import ControllerSettings
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, TransientError
from pytest_areal_eval.errors import EngineLost, RequestError

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(10):
            return await work

    return asyncio.run(limited())


def replicas(*names: str) -> tuple[Replicas, list[Replica]]:
    made = Replicas(lambda: None, Random(0))
    members = [Replica(name, Endpoint(name, f"http://{name}")) for name in names]
    for member in members:
        made.add(member)
    return made, members


class FakeEngine:
    """Answers, or raises, what a list says."""

    name = "fake"
    replicas = 1

    def __init__(self, *script: Any) -> None:
        self.info = EngineInfo()
        self._script = itertools.chain(script, itertools.repeat("ok"))
        self.asked: list[str] = []
        self.at: list[float] = []
        self.aborted = 0

    async def generate(self, request: ModelRequest, endpoint: Endpoint | None, http: Any) -> ModelResponse:
        assert endpoint is not None
        self.asked.append(endpoint.name)
        self.at.append(asyncio.get_running_loop().time())
        step = next(self._script)
        if step == "hang":
            await asyncio.sleep(60)
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, ModelResponse) else ModelResponse(text=step)

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: Any) -> None:
        self.aborted += 1
        raise OSError("the server is gone")


def client(
    engine: FakeEngine,
    members: Replicas,
    told: list[RequestError] | None = None,
    odd: list[str] | None = None,
    **settings: Any,
) -> EngineClient:
    chosen = ControllerSettings(**{"backoff_s": 0.01, **settings})
    refused, lines = [] if told is None else told, [] if odd is None else odd
    http: Any = None
    return EngineClient(engine, members, http, chosen, Random(0), on_refused=refused.append, on_odd=lines.append)  # type: ignore[arg-type]


def gaps(engine: FakeEngine) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(engine.at)]


# Balancing


def test_the_replica_with_the_fewest_in_flight_is_taken_and_ties_go_in_turn() -> None:
    async def scenario() -> list[str]:
        members, (one, _, _) = replicas("a", "b", "c")
        one.in_flight = 5
        return [(await members.take(Clock(None))).name for _ in range(6)]

    assert sorted(run(scenario())) == ["b", "b", "b", "c", "c", "c"]


def test_requests_that_share_a_beginning_follow_each_other_until_their_replica_is_the_busier() -> None:
    async def scenario() -> list[str]:
        members, (one, other) = replicas("a", "b")
        taken = [(await members.take(Clock(None), near="item")).name for _ in range(5)]
        home = {"a": one, "b": other}[taken[-1]]
        members.suspect(home)
        return [*taken, (await members.take(Clock(None), near="item")).name]

    first, *more = run(scenario())
    second = "ab".replace(first, "")
    assert more == [first, first, first, second, first]


def test_a_replica_in_doubt_gets_nothing_until_its_health_answers() -> None:
    async def scenario() -> None:
        members, (one,) = replicas("a")
        members.suspect(one)
        assert members.ready == 0
        taking = asyncio.create_task(members.take(Clock(None)))
        await asyncio.sleep(0.01)
        assert not taking.done()
        members.restore(one)
        assert await taking is one

    run(scenario())


def test_a_clock_stands_still_until_the_last_of_an_episodes_requests_has_a_replica() -> None:
    async def scenario() -> None:
        async with Clock(0.05) as clock:
            with clock.stopped():
                with clock.stopped():
                    pass
                await asyncio.sleep(0.1)

    run(scenario())


def test_nobody_waits_for_replicas_that_will_never_come() -> None:
    async def scenario() -> None:
        members, (one,) = replicas("a")
        members.remove(one)
        taking = asyncio.create_task(members.take(Clock(None)))
        await asyncio.sleep(0)
        members.close("all are gone")
        with pytest.raises(EngineLost, match="all are gone"):
            await taking

    run(scenario())


def test_a_refusal_halves_the_window_once_and_answers_open_it_again() -> None:
    async def scenario() -> None:
        members, (one,) = replicas("a")
        for _ in range(8):
            await members.take(Clock(None))
        for _ in range(8):
            members.refused(one, 0.05)
            members.give_back(one)
        assert one.window == 4
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(members.take(Clock(None)) for _ in range(4)))
        assert 0.05 <= asyncio.get_running_loop().time() - started < 0.5
        fifth = asyncio.create_task(members.take(Clock(None)))
        await asyncio.sleep(0.02)
        assert not fifth.done()
        for _ in range(5):
            members.answered(one)
        assert 5 <= one.window < 6
        members.give_back(one)
        assert await fifth is one

    run(scenario())


def test_a_window_that_is_to_be_found_out_grows_with_each_answer_until_the_first_refusal() -> None:
    async def scenario() -> None:
        members, (one,) = replicas("a")
        one.window = 4.0
        for _ in range(4):
            await members.take(Clock(None))
            members.answered(one)
        assert one.window == 7  # the first answer came while it was nearly idle
        assert members.room == 7
        members.refused(one, 0.0)
        members.answered(one)
        assert one.window == 2.5

    run(scenario())


def test_a_cancelled_waiter_passes_its_turn_on() -> None:
    async def scenario() -> None:
        members, (one,) = replicas("a")
        one.window = 1
        await members.take(Clock(None))
        first, second = (asyncio.create_task(members.take(Clock(None))) for _ in range(2))
        await asyncio.sleep(0)
        members.give_back(one)
        first.cancel()
        assert await second is one

    run(scenario())


# Retries


def test_the_pause_grows_and_is_capped() -> None:
    engine = FakeEngine(*[TransientError("503", status=503)] * 5)
    members, _ = replicas("a")
    client_ = client(engine, members, backoff_s=0.04, max_backoff_s=0.1, max_attempts=6)
    response = run(client_.generate(ModelRequest(), Clock(None), Progress()))
    assert response.attempts == 6
    for pause, whole in zip(gaps(engine), [0.04, 0.08, 0.1, 0.1, 0.1], strict=True):
        assert 0.5 * whole <= pause < whole + 0.1


def test_spent_attempts_name_the_replica_the_count_and_the_last_answer() -> None:
    engine = FakeEngine(*[TransientError("the model is overloaded", status=503)] * 9)
    members, _ = replicas("a")
    with pytest.raises(
        RequestError, match=r"a \(http://a\) failed after 3 attempts; the last: the model is overloaded"
    ) as e:
        run(client(engine, members, max_attempts=3).generate(ModelRequest(), Clock(None), Progress()))
    assert e.value.status == 503
    assert len(engine.asked) == 3


def test_a_permanent_refusal_is_not_retried() -> None:
    engine = FakeEngine(RequestError("unknown field", status=400, hint="Drop it."))
    members, _ = replicas("a", "b")
    with pytest.raises(RequestError, match=r"refused the request \(attempt 1\): unknown field\nDrop it\."):
        run(client(engine, members).generate(ModelRequest(), Clock(None), Progress()))
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    ("script", "ends"),
    [
        (["404"], True),
        (["ok", "404"], False),  # the address is right, so it is this request
        (["400"], False),
        (["ok", "401"], True),
    ],
)
def test_an_answer_that_every_request_would_get_is_told(script: list[str], ends: bool) -> None:
    steps = [step if step == "ok" else RequestError(step, status=int(step)) for step in script]
    members, _ = replicas("a")
    told: list[RequestError] = []
    asking = client(FakeEngine(*steps), members, told)
    for step in script:
        with nullcontext() if step == "ok" else pytest.raises(RequestError, match=step):
            run(asking.generate(ModelRequest(), Clock(None), Progress()))
    assert [error.status for error in told] == ([int(script[-1])] if ends else [])


def test_a_retry_avoids_the_replica_that_failed() -> None:
    engine = FakeEngine(TransientError("500", status=500))
    members, _ = replicas("a", "b")
    run(client(engine, members).generate(ModelRequest(), Clock(None), Progress()))
    assert sorted(engine.asked) == ["a", "b"]


def test_a_lost_connection_puts_the_replica_in_doubt() -> None:
    engine = FakeEngine(TransientError("connection reset", lost=True))
    members, (one, two) = replicas("a", "b")
    asked: list[bool] = []
    members.on_suspect = lambda: asked.append(True)
    run(client(engine, members).generate(ModelRequest(), Clock(None), Progress()))
    assert [one.up, two.up].count(False) == 1
    assert asked == [True]


def test_a_lost_replica_ends_its_requests_at_once() -> None:
    async def scenario() -> ModelResponse:
        members, _ = replicas("a", "b")
        working = asyncio.create_task(
            client(engine, members, request_timeout_s=60).generate(ModelRequest(), Clock(None), Progress())
        )
        await asyncio.sleep(0.01)
        members.remove(next(r for r in members._members if r.name == engine.asked[0]))
        return await working

    engine = FakeEngine("hang")
    response = run(scenario())
    assert response.attempts == 2
    assert len(set(engine.asked)) == 2
    assert engine.aborted == 0


def test_a_request_over_its_own_limit_is_aborted_and_tried_again() -> None:
    engine = FakeEngine("hang")
    members, _ = replicas("a")
    response = run(client(engine, members, request_timeout_s=0.05).generate(ModelRequest(), Clock(None), Progress()))
    assert response.attempts == 2
    assert engine.aborted == 1


def test_retry_after_is_waited_for() -> None:
    engine = FakeEngine(TransientError("429", status=429, retry_after_s=0.2))
    members, _ = replicas("a")
    run(client(engine, members).generate(ModelRequest(), Clock(None), Progress()))
    assert 0.2 <= gaps(engine)[0] < 0.5


def test_the_deadline_is_kept_whatever_a_server_asks_for() -> None:
    async def scenario() -> None:
        members, _ = replicas("a")
        engine = FakeEngine(TransientError("429", status=429, retry_after_s=3600.0))
        async with Clock(0.1) as clock:
            await client(engine, members).generate(ModelRequest(), clock, Progress())

    with pytest.raises(TimeoutError):
        run(scenario())


# The clock


def test_the_clock_stands_still_while_no_replica_is_ready() -> None:
    async def scenario() -> None:
        members, (one,) = replicas("a")
        members.suspect(one)
        async with Clock(0.1) as clock:
            asyncio.get_running_loop().call_later(0.3, members.restore, one)
            assert await members.take(clock) is one
            assert clock.overdue_s() < 0
            await asyncio.sleep(0.05)

    run(scenario())


def test_the_clock_goes_on_where_it_stopped() -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with Clock(0.2) as clock:
                await asyncio.sleep(0.1)
                with clock.stopped(), clock.stopped():
                    await asyncio.sleep(0.2)
                await asyncio.sleep(10)
        except TimeoutError:
            return loop.time() - started
        raise AssertionError("no time-out")

    assert 0.4 <= run(scenario()) < 1.0


def test_an_ended_clock_may_still_be_stopped_by_what_the_episode_left_running() -> None:
    async def scenario() -> None:
        clock = Clock(0.1)
        async with clock:
            pass
        with clock.stopped():
            assert not clock.expired

    run(scenario())


# Servers that are not as they should be


def told_of(steps: Sequence[ModelResponse], limits: Iterable[int] = itertools.repeat(64)) -> list[str]:
    """What is said while the replica a answers so, one request after the other."""

    async def scenario() -> list[str]:
        odd: list[str] = []
        members, _ = replicas("a")
        asking = client(FakeEngine(*steps), members, odd=odd)
        for _, limit in zip(steps, limits, strict=False):
            request = ModelRequest(gconfig=GenerationHyperparameters(max_new_tokens=limit))
            await asking.generate(request, Clock(None), Progress())
        return odd

    return run(scenario())


def test_a_server_that_changes_its_weights_under_the_run_is_told_once() -> None:
    """A training run's server, whose weights its trainer updates: the score is of no one checkpoint."""

    steps = [ModelResponse(text="x", served=name) for name in ("policy", "policy", "step-2", "policy", "step-3")]
    assert told_of(steps) == ["a answered as policy and then as step-2: the scores are not of one model"]


def test_another_checkpoint_that_was_asked_for_is_no_surprise() -> None:
    async def scenario() -> list[str]:
        odd: list[str] = []
        members, _ = replicas("a")
        asking = client(FakeEngine(ModelResponse(served="1"), ModelResponse(served="2")), members, odd=odd)
        await asking.generate(ModelRequest(), Clock(None), Progress())
        asking.oddities.forget()
        await asking.generate(ModelRequest(), Clock(None), Progress())
        return odd

    assert run(scenario()) == []


def test_an_answer_longer_than_was_asked_for_is_told_once() -> None:
    """An endpoint that does not honour the limit spends what nobody meant to, and scores otherwise than the others."""

    long = ModelResponse(output_tokens=[5] * 9)
    assert told_of([long] * 3, (9, 8, 7)) == ["a answered 9 tokens where at most 8 were asked for"]


def test_an_answer_that_the_servers_context_ends_is_told_once() -> None:
    cut = ModelResponse(input_count=20, output_count=12, stop_reason="length")
    said = (
        "cut off an answer of 12 tokens to a prompt of 20, before max_new_tokens=40: its context, or a limit of its own"
    )
    assert told_of([cut, cut, replace(cut, output_count=40)], (40, 40, 40)) == [f"a {said}, is shorter"]
