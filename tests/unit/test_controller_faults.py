"""The fault matrix, over HTTP: 50 rows, one of them bad, 16 in flight, 20 ms an answer.

Whatever happens to the bad row, the good ones are kept, the bad one is named with what the server said and how often it
was asked, and the run ends.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from standin.engine import StandinEngine
from standin.faults import Rule
from standin.server import Running, in_thread
from standin.tokens import ByteTokenizer
from support.waiting import until

from pytest_areal_eval.api import Episode, EpisodeStatus, Rollout
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.engines.base import Endpoint
from pytest_areal_eval.errors import EngineLost, EngineStartError

BAD = "Question 7."


class Ask:
    """One question; the reward is whether the answer says 42."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        reply = await engine.chat([{"role": "user", "content": data["q"]}], max_new_tokens=64)
        return float("42" in reply.text)


@contextmanager
def attached(*servers: Running, messages: bool = False, **settings: Any) -> Iterator[RolloutController]:
    chosen = {"max_concurrency": 16, "backoff_s": 0.02, "health_interval_s": 0.1, "episode_timeout_s": 20.0}
    tokenizer = None if messages else ByteTokenizer()
    endpoints = [Endpoint(f"replica/{i}", server.url) for i, server in enumerate(servers)]
    with RolloutController(
        StandinEngine(), settings=ControllerSettings(**{**chosen, **settings}), tokenizer=tokenizer
    ) as controller:
        controller.initialize(server_infos=endpoints)
        until(lambda: controller.snapshot().replicas_ready == len(servers), "all replicas")
        yield controller


def run_rows(controller: RolloutController, count: int = 50) -> list[Rollout]:
    ids = [controller.submit({"q": f"Question {i}."}, Ask(), item_id=f"row-{i}") for i in range(count)]
    return controller.wait(ids=ids, timeout=60)


def good_and_bad(rollouts: Sequence[Rollout]) -> tuple[list[Rollout], Episode]:
    return [r for r in rollouts if r.item["q"] != BAD], rollouts[7].episodes[0]


@pytest.mark.parametrize(
    ("rule", "status", "attempts", "said"),
    [
        (
            Rule(BAD, "status", 500),
            EpisodeStatus.WORKFLOW_ERROR,
            5,
            "failed after 5 attempts; the last: .*scripted 500",
        ),
        (
            Rule(BAD, "status", 400),
            EpisodeStatus.WORKFLOW_ERROR,
            1,
            r"refused the request \(attempt 1\): .*scripted 400",
        ),
        (Rule(BAD, "drop"), EpisodeStatus.WORKFLOW_ERROR, 5, "failed after 5 attempts; the last: .*ServerDisconnected"),
        (Rule(BAD, "malformed"), EpisodeStatus.WORKFLOW_ERROR, 5, "failed after 5 attempts; the last: .*no JSON"),
        (Rule(BAD, "hang"), EpisodeStatus.TIMEOUT, 1, r"no result within 1 s: request 1 was unanswered \(attempt 1 on"),
    ],
    ids=["500 for ever", "400", "connection dropped", "malformed body", "never answers"],
)
def test_a_row_that_cannot_be_answered_is_named_and_costs_itself_alone(
    rule: Rule, status: EpisodeStatus, attempts: int, said: str
) -> None:
    """C81, C80, D4: bounded retries, permanent refusals not retried, good rows kept."""
    rule.hits = 0
    with in_thread(latency_s=0.02, faults=[rule]) as server:
        with attached(server, episode_timeout_s=1.0 if rule.fault == "hang" else 20.0) as controller:
            good, bad = good_and_bad(run_rows(controller))
            assert controller.failure is None
        assert server.load.requests == 49 + attempts
    assert [r.reward for r in good] == [1.0] * 49
    assert (bad.status, bad.reward, bad.attempts, bad.item_id) == (status, None, attempts, "row-7")
    assert re.search(said, bad.error), bad.error
    assert BAD in bad.prompt


@pytest.mark.parametrize(
    ("rule", "messages", "status"),
    [
        (Rule(BAD, "null"), True, EpisodeStatus.EMPTY),
        (Rule(BAD, "empty"), False, EpisodeStatus.EMPTY),
        (Rule(BAD, "length"), False, EpisodeStatus.TRUNCATED),
        (Rule(BAD, "think"), False, EpisodeStatus.UNFINISHED_THINKING),
    ],
    ids=["content null", "content empty", "finish length", "open think"],
)
def test_an_answer_that_is_no_answer_is_scored_and_says_so(rule: Rule, messages: bool, status: EpisodeStatus) -> None:
    """C4, C7: truncated, empty and unfinished answers are not just wrong ones."""
    rule.hits = 0
    with in_thread(latency_s=0.02, faults=[rule]) as server, attached(server, messages=messages) as controller:
        good, bad = good_and_bad(run_rows(controller))
    assert {r.episodes[0].status for r in good} == {EpisodeStatus.SCORED}
    assert bad.status is status
    assert bad.reward == (1.0 if status is EpisodeStatus.TRUNCATED else 0.0)


@pytest.mark.parametrize("fault", ["status", "drop", "malformed"])
def test_a_fault_that_passes_is_retried(fault: str) -> None:
    with in_thread(latency_s=0.02, faults=[Rule(BAD, fault, times=1)]) as server:
        with attached(server) as controller:
            good, bad = good_and_bad(run_rows(controller))
        assert server.load.requests == 51
    assert bad.status is EpisodeStatus.SCORED
    assert bad.attempts == 2
    assert len(good) == 49


def test_retry_after_is_honoured_without_a_stampede() -> None:
    """C88: after a 429 the replica is left alone as long as it asked for, and then not hit by all at once."""
    with in_thread(latency_s=0.02, faults=[Rule("", "status", 429, retry_after=0.5, times=1)]) as server:
        started = time.monotonic()
        with attached(server) as controller:
            rollouts = run_rows(controller)
        assert time.monotonic() - started > 0.5
        at = [when for when, _ in server.load.steps]
        assert max(later - earlier for earlier, later in itertools.pairwise(at)) > 0.4
        resumed = [level for when, level in server.load.steps if when > at[0] + 0.5]
        assert max(resumed[:8]) <= 8
    assert [r.reward for r in rollouts] == [1.0] * 50


def test_requests_go_to_the_replica_with_the_fewest_in_flight() -> None:
    with in_thread(latency_s=0.1) as slow, in_thread(latency_s=0.01) as fast:
        with attached(slow, fast, max_concurrency=8) as controller:
            rollouts = run_rows(controller, 100)
        assert fast.load.requests > 3 * slow.load.requests
        assert slow.load.peak <= 5
    assert {e.replica for r in rollouts for e in r.episodes} == {"replica/0", "replica/1"}


def test_equal_replicas_get_equal_shares() -> None:
    with in_thread(latency_s=0.02) as one, in_thread(latency_s=0.02) as two, in_thread(latency_s=0.02) as three:
        with attached(one, two, three, max_concurrency=30) as controller:
            run_rows(controller, 300)
        assert [s.load.peak for s in (one, two, three)] == [10, 10, 10]


def test_a_retry_goes_to_another_replica() -> None:
    broken_row = Rule(BAD, "status", 500)
    with (
        in_thread(faults=[broken_row]) as broken,
        in_thread() as healthy,
        attached(broken, healthy) as controller,
    ):
        _, bad = good_and_bad(run_rows(controller))
    assert bad.status is EpisodeStatus.SCORED
    assert bad.attempts <= 2
    assert bad.replica == "replica/1"


def test_a_hanging_request_is_tried_again_elsewhere_when_it_has_a_limit() -> None:
    with in_thread(faults=[Rule(BAD, "hang")]) as broken, in_thread() as healthy:
        with attached(broken, healthy, request_timeout_s=0.3) as controller:
            _, bad = good_and_bad(run_rows(controller))
        until(lambda: broken.load.in_flight == 0, "the abort of the request that was given up")
    assert bad.status is EpisodeStatus.SCORED


def test_cancelling_frees_the_servers_slot() -> None:
    with in_thread(latency_s=60) as server, attached(server) as controller:
        task = controller.submit({"q": "x"}, Ask())
        until(lambda: server.load.in_flight == 1, "the request")
        controller.cancel([task])
        until(lambda: server.load.in_flight == 0, "the abort")
        assert server.load.aborted >= 1


def test_a_server_that_dies_after_25_rows_ends_the_run_and_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """C10, D4: infrastructure is never blamed on the model, and waiting for it is bounded."""
    monkeypatch.setattr("pytest_areal_eval.controller.upkeep.RECONNECT_S", 0.5)
    with in_thread(latency_s=0.02, die_after=25) as server, attached(server, restarts=0) as controller:
        rollouts = run_rows(controller)
        assert isinstance(controller.failure, EngineLost)
        assert "replica/0" in str(controller.failure)
        late = controller.submit({"q": "too late"}, Ask())
        assert controller.wait(ids=[late], timeout=5)[0].episodes[0].status is EpisodeStatus.ENGINE_LOST
    statuses = [r.episodes[0].status for r in rollouts]
    assert 9 <= statuses.count(EpisodeStatus.SCORED) <= 25
    assert statuses.count(EpisodeStatus.SCORED) + statuses.count(EpisodeStatus.ENGINE_LOST) == 50
    assert all(r.reward == 1.0 for r in rollouts if r.episodes[0].status is EpisodeStatus.SCORED)


def test_a_given_server_that_comes_back_is_used_again_and_nothing_is_lost() -> None:
    """C14: while nothing answers, episodes wait; no attempts and no time of theirs are burned."""
    with in_thread(latency_s=0.02) as server, attached(server, episode_timeout_s=1.0) as controller:
        threading.Timer(0.05, server.die).start()
        threading.Timer(2.0, server.revive).start()
        rollouts = run_rows(controller)
    assert [r.reward for r in rollouts] == [1.0] * 50
    assert max(r.episodes[0].attempts for r in rollouts) <= 3


def test_one_of_two_servers_dies_and_its_requests_finish_on_the_other() -> None:
    with in_thread(latency_s=0.05) as one, in_thread(latency_s=0.05) as two, attached(one, two) as controller:
        threading.Timer(0.1, one.die).start()
        rollouts = run_rows(controller, 200)
        assert controller.failure is None
        assert controller.snapshot().replicas_ready == 1
    assert [r.reward for r in rollouts] == [1.0] * 200
    assert {r.episodes[0].replica for r in rollouts[-50:]} == {"replica/1"}


def test_servers_of_somebody_else_are_followed_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is started again elsewhere without being noticed, one is lost for a while, one comes late."""
    monkeypatch.setattr("pytest_areal_eval.controller.fleet.SOURCE_S", 0.05)
    controller = RolloutController(
        StandinEngine(),
        settings=ControllerSettings(max_concurrency=16, backoff_s=0.02, restarts=0, episode_timeout_s=20.0),
        tokenizer=ByteTokenizer(),
    )
    with controller, in_thread(latency_s=0.02) as one, in_thread(latency_s=0.02) as two:
        there = [Endpoint("replica/0", one.url)]
        controller.initialize(server_infos=lambda: list(there))
        there[:] = [Endpoint("replica/0", two.url)]
        until(lambda: controller.endpoints == there, "the new address")
        run_rows(controller)
        assert one.load.report()["peak"] == 0
        two.die()
        there.clear()
        left = controller.submit({"q": "Question 1."}, Ask())
        until(lambda: controller.snapshot().replicas_ready == 0, "the loss")
        with pytest.raises(TimeoutError):
            controller.wait(ids=[left], timeout=0.5)
        there[:] = [Endpoint("replica/1", one.url)]
        assert controller.wait(ids=[left], timeout=10)[0].reward == 1.0
        assert controller.snapshot().replicas_total == 2
        assert controller.failure is None


def test_what_a_source_of_addresses_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_areal_eval.controller.fleet.SOURCE_S", 0.05)
    with in_thread() as server, RolloutController(StandinEngine(), tokenizer=ByteTokenizer()) as controller:
        answers = iter([[Endpoint("replica/0", server.url)]] * 3)

        def source() -> list[Endpoint]:
            for answer in answers:
                return answer
            raise EngineLost("they will not come back")

        controller.initialize(server_infos=source)
        until(lambda: controller.failure is not None, "the end")
        assert "they will not come back" in str(controller.failure)


def test_a_server_that_is_not_there_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: an unreachable endpoint is an error of its own, never a score."""
    monkeypatch.setattr("pytest_areal_eval.controller.upkeep.RECONNECT_S", 0.5)
    controller = RolloutController(StandinEngine())
    with pytest.raises(EngineStartError, match=r"replica/0.*127\.0\.0\.1.*"):
        controller.initialize(server_infos=[Endpoint("replica/0", "http://127.0.0.1:9")])


def test_a_wrong_token_fails_the_start_at_once() -> None:
    with in_thread(token="right") as server:
        controller = RolloutController(StandinEngine())
        started = time.monotonic()
        with pytest.raises(EngineStartError, match="401"):
            controller.initialize(server_infos=[Endpoint("replica/0", server.url, "wrong")])
        assert time.monotonic() - started < 5


def test_the_server_sees_the_asked_concurrency_all_the_time() -> None:
    """C85: peak and mean in flight at the server are what was asked for."""
    with in_thread(latency_s=0.5) as server:
        with attached(server, max_concurrency=32) as controller:
            run_rows(controller, 160)
        report = server.load.report()
    assert report["peak"] == 32
    assert report["mean_in_flight"] > 0.9 * 32  # above 0.97 when the server has a core of its own
