"""What an item comes to: its episodes, how each of them ended, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class EpisodeStatus(StrEnum):
    """How an episode ended.  Every requested episode has exactly one."""

    SCORED = "scored"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    UNFINISHED_THINKING = "unfinished_thinking"
    GRADER_TIMEOUT = "grader_timeout"
    GRADER_ERROR = "grader_error"
    PROMPT_TOO_LONG = "prompt_too_long"
    WORKFLOW_ERROR = "workflow_error"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    ENGINE_LOST = "engine_lost"
    CANCELLED = "cancelled"

    @property
    def kind(self) -> Literal["scored", "grader_fault", "error"]:
        """The term of ``requested = scored + grader faults + errors`` that this status counts in."""
        if self in _SCORED:
            return "scored"
        return "grader_fault" if self in _GRADER_FAULTS else "error"


_SCORED = frozenset(
    {EpisodeStatus.SCORED, EpisodeStatus.TRUNCATED, EpisodeStatus.EMPTY, EpisodeStatus.UNFINISHED_THINKING}
)
_GRADER_FAULTS = frozenset({EpisodeStatus.GRADER_TIMEOUT, EpisodeStatus.GRADER_ERROR})
GIVEN_UP = frozenset({EpisodeStatus.CANCELLED, EpisodeStatus.ENGINE_LOST})
"""How an episode ends that the run gave up and that says nothing of the model: a resumed run owes it."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One finished run of the workflow on one item: what the journal keeps and the statistics count.

    Attributes:
        evaluation: the evaluation's name (empty for a plain script).
        item_id: the item's id within its evaluation.
        index: which of the item's ``n_samples`` episodes this is, from 0.
        status: how it ended.
        reward: the score; 0.0 for a grader's fault, None where there is none (an error).
        metrics: further numbers of a dict reward or of the workflow.
        prompt: the rendered prompt, or the last user message.
        completion: what the model wrote last (reasoning removed where the server split it off).
        reasoning: the reasoning where the server split it off.
        extracted: the answer as the grader read it, where it tells.
        gold: the answer that was expected, where the grader tells.
        stop_reason: the last response's.
        input_tokens: prompt tokens over all of the episode's requests.
        output_tokens: generated tokens over all of the episode's requests.
        requests: number of requests that the workflow made.
        attempts: HTTP attempts over all requests.
        latency_s: seconds from the episode's start to its end.
        started_at: Unix time of its start.
        replica: the replica that answered last.
        seed: the request seed derived for it, or None.
        error: what went wrong, one paragraph; empty where nothing did.
        traceback: the user's frames of the exception, if any.
        transcript: an agent's calls of the model, in order: messages, content, tool calls, tokens, seconds.
        stats: what it recorded with ``stats_tracker``: by full key the type, count, sum, minimum and maximum.
    """

    evaluation: str = ""
    item_id: str
    index: int = 0
    status: EpisodeStatus
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    prompt: str = ""
    completion: str = ""
    reasoning: str = ""
    extracted: str | None = None
    gold: str | None = None
    stop_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    attempts: int = 0
    latency_s: float = 0.0
    started_at: float = 0.0
    replica: str = ""
    seed: int | None = None
    error: str = ""
    traceback: str = ""
    transcript: Sequence[Mapping[str, Any]] = ()
    stats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The completion, under the name that test bodies use."""
        return self.completion

    @property
    def counted_reward(self) -> float:
        """The reward as the headline counts it: 0.0 where there is none."""
        return 0.0 if self.reward is None else self.reward


@dataclass(frozen=True, kw_only=True, repr=False)
class Rollout:
    """What an item's test receives: its episodes together.

    Attributes:
        item: the dataset's record.
        item_id: its id.
        episodes: ``n_samples`` of them, ordered by index.
        task_id: what ``RolloutController.submit`` returned for it.
        evaluation: the evaluation's name (empty for a plain script).
        started_at: Unix time of the first episode's start.
        duration_s: seconds from there to the last episode's end.
    """

    item: Mapping[str, Any]
    item_id: str
    episodes: tuple[Episode, ...]
    task_id: int = -1
    evaluation: str = ""
    started_at: float = 0.0
    duration_s: float = 0.0

    def __repr__(self) -> str:
        """Short: a failing assertion shows it, and the texts would fill the screen."""
        return f"<Rollout of {self.item_id!r}: reward {self.reward:g}, {len(self.episodes)} episode(s)>"

    @property
    def reward(self) -> float:
        """Mean of the episodes' rewards, one without a reward counted as 0."""
        return sum(e.counted_reward for e in self.episodes) / max(len(self.episodes), 1)

    @property
    def rewards(self) -> list[float]:
        """Each episode's reward, 0.0 where there is none."""
        return [e.counted_reward for e in self.episodes]

    @property
    def text(self) -> str:
        """The first episode's completion."""
        return self.episodes[0].completion if self.episodes else ""

    @property
    def errors(self) -> tuple[Episode, ...]:
        """The episodes that ended in an error and so carry no reward."""
        return tuple(e for e in self.episodes if e.status.kind == "error")


@dataclass(frozen=True)
class Score:
    """A reward with what the grader saw.

    Attributes:
        value: the reward.
        metrics: further numbers.
        extracted: the answer as the grader read it.
        gold: the answer that was expected.
        failure: the assertion that failed, where a strict test's own gave the reward.
    """

    value: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    extracted: str | None = None
    gold: str | None = None
    failure: str = ""


RewardFn = Callable[..., Any]
"""``(prompt, completions, prompt_ids, completion_ids, **columns)`` → float, int, bool, numpy scalar, dict or Score."""
REWARD_ARGUMENTS = ("prompt", "completions", "prompt_ids", "completion_ids")
"""Its first four; columns of these names are not passed on as keywords."""

Record = Mapping[str, Any]
Dataset = Sequence[Record]
