"""What is kept of an episode, and that it survives JSON."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_areal_eval.api import Episode, EpisodeStatus, Rollout
from pytest_areal_eval.stats import EpisodeResult, ItemResult

SCORED = EpisodeStatus.SCORED


def test_an_episode_keeps_its_numbers_and_no_text() -> None:
    episode = Episode(
        item_id="7",
        status=SCORED,
        reward=0.5,
        metrics={"turns": 2.0},
        prompt="a long prompt",
        completion="a long answer",
        extracted="42",
        stop_reason="stop",
        input_tokens=10,
        output_tokens=20,
        latency_s=1.5,
    )
    result = EpisodeResult.from_episode(episode)
    assert result == EpisodeResult(SCORED, 0.5, "42", 10, 20, 1.5, "stop", {"turns": 2.0})
    assert "long" not in json.dumps(result.to_dict())


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_names_the_item(reward: float) -> None:
    """C1: a NaN or infinite reward is an error, not a row that leaves the denominator."""
    with pytest.raises(ValueError, match=r"item '0042', episode 3: reward must be a finite number"):
        EpisodeResult.from_episode(Episode(item_id="0042", index=3, status=SCORED, reward=reward))


def test_a_metric_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="turns must be a finite number"):
        EpisodeResult(SCORED, 1.0, metrics={"turns": math.nan})


@pytest.mark.parametrize(
    ("status", "reward"), [(SCORED, None), (EpisodeStatus.TIMEOUT, 0.0), (EpisodeStatus.WORKFLOW_ERROR, 1.0)]
)
def test_a_reward_that_contradicts_the_status_is_refused(status: EpisodeStatus, reward: float | None) -> None:
    """C3: one rule, so that rows and summary recompute to the same number."""
    with pytest.raises(ValueError, match=status.value):
        EpisodeResult(status, reward)


def test_an_items_reward_is_its_rollouts() -> None:
    episodes = tuple(
        Episode(item_id="1", index=i, status=status, reward=reward)
        for i, (status, reward) in enumerate([(SCORED, 0.1), (EpisodeStatus.TIMEOUT, None), (SCORED, 0.7)])
    )
    item = ItemResult("1", tuple(map(EpisodeResult.from_episode, episodes)))
    assert item.reward == Rollout(item={}, item_id="1", episodes=episodes).reward


def test_a_cancelled_episode_is_no_part_of_its_item() -> None:
    cancelled = EpisodeResult(EpisodeStatus.CANCELLED)
    assert ItemResult("1", (EpisodeResult(SCORED, 1.0), cancelled)).reward == 1.0
    assert ItemResult("1", (cancelled,)).reward is None


_FINITE = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def episode_results(draw: st.DrawFn) -> EpisodeResult:
    status = draw(st.sampled_from(EpisodeStatus))
    reward = {"scored": draw(_FINITE), "grader_fault": 0.0, "error": None}[status.kind]
    return EpisodeResult(
        status,
        reward,
        draw(st.none() | st.text()),
        draw(st.integers(0, 10**6)),
        draw(st.integers(0, 10**6)),
        draw(st.floats(0, 1e6)),
        draw(st.sampled_from(["stop", "length", "abort", ""])),
        draw(st.dictionaries(st.text(max_size=8), _FINITE, max_size=3)),
    )


@settings(deadline=None)
@given(st.text(), st.lists(episode_results(), max_size=4))
def test_an_item_survives_json(item_id: str, episodes: list[EpisodeResult]) -> None:
    item = ItemResult(item_id, tuple(episodes))
    assert ItemResult.from_dict(json.loads(json.dumps(item.to_dict(), allow_nan=False))) == item


def test_results_are_slim_and_cannot_change() -> None:
    result = EpisodeResult(SCORED, 1.0)
    assert not hasattr(result, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.reward = 2.0  # type: ignore[misc]
