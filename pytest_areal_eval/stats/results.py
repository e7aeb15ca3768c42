"""What is kept of every episode for the whole session: numbers, a status and the extracted answer, no other text.

Invariant: an episode that was scored has a finite reward, and one that ended in an error has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_areal_eval.api import Episode, EpisodeStatus

_NO_METRICS: Mapping[str, float] = {}
_NOTHING: Mapping[str, Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """One episode, as the statistics count it.

    Attributes:
        status: how it ended.
        reward: its score; 0.0 for a grader's fault, None for an error.
        answer: the answer as the grader read it, where it tells.
        input_tokens: prompt tokens over all of its requests.
        output_tokens: generated tokens over all of its requests.
        latency_s: seconds from its start to its end.
        stop_reason: the last response's.
        metrics: further numbers.
        stats: what its workflow recorded with ``stats_tracker``, as :attr:`Episode.stats`.

    Raises:
        ValueError: the reward or a metric is not finite, or the reward contradicts the status.
    """

    status: EpisodeStatus
    reward: float | None = None
    answer: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    stop_reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    stats: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        if self.status.kind == "scored" and self.reward is None:
            raise ValueError(f"an episode with status {self.status} needs a reward")
        if self.status.kind == "error" and self.reward is not None:
            raise ValueError(f"an episode with status {self.status} has no reward, got {self.reward!r}")
        for name, value in (("reward", self.reward or 0.0), *self.metrics.items()):
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}")

    @classmethod
    def from_episode(cls, episode: Episode) -> EpisodeResult:
        """Keep of an episode what the statistics need; an error names the item and the episode."""
        try:
            return cls(
                status=episode.status,
                reward=episode.reward,
                answer=episode.extracted,
                input_tokens=episode.input_tokens,
                output_tokens=episode.output_tokens,
                latency_s=episode.latency_s,
                stop_reason=episode.stop_reason,
                metrics=dict(episode.metrics),
                stats=episode.stats or _NOTHING,
            )
        except ValueError as error:
            raise ValueError(f"item {episode.item_id!r}, episode {episode.index}: {error}") from error

    @property
    def counted_reward(self) -> float:
        """The reward as the headline counts it: 0.0 where there is none."""
        return 0.0 if self.reward is None else self.reward

    @property
    def was_cut(self) -> bool:
        """Whether generation ended at the token limit, whatever became of the answer."""
        return self.stop_reason == "length" or self.status is EpisodeStatus.TRUNCATED

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able copy; :meth:`from_dict` reads it back."""
        return {
            "status": self.status.value,
            "reward": self.reward,
            "answer": self.answer,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "latency_s": self.latency_s,
            "stop_reason": self.stop_reason,
            "metrics": dict(self.metrics),
            **({"stats": dict(self.stats)} if self.stats else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EpisodeResult:
        """Read what :meth:`to_dict` wrote."""
        known = {**data, "status": EpisodeStatus(data["status"]), "metrics": data["metrics"] or _NO_METRICS}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class ItemResult:
    """One item's episodes, ordered by index."""

    item_id: str
    episodes: tuple[EpisodeResult, ...]

    @property
    def finished(self) -> tuple[EpisodeResult, ...]:
        """The episodes that count: all but the cancelled ones, which were never work done."""
        return tuple(e for e in self.episodes if e.status is not EpisodeStatus.CANCELLED)

    @property
    def reward(self) -> float | None:
        """Mean of the finished episodes' rewards, one without a reward counted as 0; None if none finished."""
        rewards = [e.counted_reward for e in self.finished]
        return sum(rewards) / len(rewards) if rewards else None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able copy; :meth:`from_dict` reads it back."""
        return {"item_id": self.item_id, "episodes": [e.to_dict() for e in self.episodes]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ItemResult:
        """Read what :meth:`to_dict` wrote."""
        return cls(data["item_id"], tuple(EpisodeResult.from_dict(e) for e in data["episodes"]))
