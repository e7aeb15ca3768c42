"""One run of a workflow on one item."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_areal_eval.agents import Agents
from pytest_areal_eval.api import Episode, EpisodeStatus, GenerationHyperparameters, Rollout
from pytest_areal_eval.controller.client import EngineClient
from pytest_areal_eval.controller.clock import Clock
from pytest_areal_eval.controller.outcome import Outcome, fault, judge
from pytest_areal_eval.controller.place import Place
from pytest_areal_eval.controller.recording import EpisodeEngine, Note
from pytest_areal_eval.engines.base import Engine
from pytest_areal_eval.journal.answers import Answer
from pytest_areal_eval.rewards.pool import RewardPool
from pytest_areal_eval.stats.cells import cells_state
from pytest_areal_eval.stats.tracker import Trackers, adopt
from pytest_areal_eval.workflows import context
from pytest_areal_eval.workflows.prompts import Prompts

_PLAIN = frozenset({str, int, float, bool, type(None)})


@dataclass(eq=False, slots=True)
class Submission:
    """An item on its way.

    Attributes:
        task_id: what ``submit`` returned.
        data: the record.
        workflow: an object with ``arun_episode``.
        item_id: the item's id.
        evaluation: its evaluation's name.
        gconfig: its evaluation's sampling.
        template_kwargs: its evaluation's chat template arguments.
        timeout_s: limit of one of its episodes.
        callback: receives the rollout instead of ``wait``.
        episodes: those that are finished, by index.
        missing: how many are not.
        answers: what an earlier run's engine answered to the unfinished ones, by index.
        cancelled: nobody waits for it any more.
        reward_range: lowest and highest reward of an episode; None: every finite number.
    """

    task_id: int
    data: Mapping[str, Any]
    workflow: Any
    item_id: str
    evaluation: str
    gconfig: GenerationHyperparameters | None
    template_kwargs: Mapping[str, Any]
    timeout_s: float
    callback: Callable[[Rollout], None] | None
    episodes: list[Episode | None]
    missing: int
    answers: Mapping[int, Sequence[Answer]] = field(default_factory=dict)
    cancelled: bool = False
    reward_range: tuple[float, float] | None = None

    def rollout(self) -> Rollout:
        """The finished item."""
        return rollout_of(self.data, [e for e in self.episodes if e is not None], self.task_id)


@dataclass(eq=False, slots=True)
class Unit:
    """One episode in flight.

    Attributes:
        submission: its item.
        index: which of the item's episodes it is.
        clock: its time limit.
        started: ``time.monotonic()`` of its start.
        verdict: set by whoever ends it from outside: the status and the reason.
        place: its place among those in flight; None where it never ran.
    """

    submission: Submission
    index: int
    clock: Clock
    started: float
    verdict: tuple[EpisodeStatus, str] | None = None
    place: Place | None = None


@dataclass(frozen=True)
class Surroundings:
    """What every episode of a run shares."""

    client: EngineClient
    engine: Engine
    tokenizer: Any
    run_seed: int
    reward_pool: RewardPool
    agents: Agents
    trackers: Trackers
    on_answer: Callable[[Answer, bool], None] | None = None
    prompts: Prompts = field(default_factory=Prompts)


async def run_episode(unit: Unit, around: Surroundings) -> Episode:
    """Run one episode to its end.  Never raises, except CancelledError when its item was cancelled."""
    item, started_at, started = unit.submission, time.time(), time.perf_counter()
    seed = episode_seed(around.run_seed, item.item_id, unit.index)
    engine = EpisodeEngine(
        around.client,
        unit.clock,
        info=around.engine.info,
        tokenizer=around.tokenizer,
        gconfig=item.gconfig,
        template_kwargs=item.template_kwargs,
        seed=seed,
        place=unit.place,
        prompts=around.prompts,
        answers=item.answers.get(unit.index, ()),
        note=_note(unit, around.on_answer),
    )
    context.set(_context(unit, around, seed))
    recorded = adopt(around.trackers)
    outcome = await _outcome(unit, engine)
    texts: tuple[str, str] = "", ""
    try:
        texts = engine.prompt(), engine.completion()
    except Exception as error:  # whatever the workflow's own tokenizer raises
        outcome = fault(error, unit, engine)
    episode = _episode(unit, engine, outcome, texts, seed, started_at, time.perf_counter() - started)
    # A copy, since a thread of the workflow's may outlive it.
    return dataclasses.replace(episode, stats=cells_state(dict(recorded))) if recorded else episode


def _context(unit: Unit, around: Surroundings, seed: int) -> context.WorkflowContext:
    item = unit.submission
    return context.WorkflowContext(
        task_id=item.task_id,
        item_id=item.item_id,
        evaluation=item.evaluation,
        episode_index=unit.index,
        group_size=len(item.episodes),
        seed=seed,
        reward_pool=around.reward_pool,
        agents=around.agents,
        prompts=around.prompts,
        place=unit.place,
    )


def _note(unit: Unit, on_answer: Callable[[Answer, bool], None] | None) -> Note | None:
    if on_answer is None:
        return None
    item, index = unit.submission, unit.index

    def note(request: int, key: str, response: Mapping[str, Any], old: bool) -> None:
        on_answer(Answer(item.evaluation, item.item_id, index, request, key, response), old)

    return note


def rollout_of(data: Mapping[str, Any], episodes: Sequence[Episode], task_id: int = -1) -> Rollout:
    """A finished item.

    Args:
        data: its record.
        episodes: all of its episodes, by index; at least one.
        task_id: what ``submit`` returned for it, if it was submitted.
    """
    start = min(e.started_at for e in episodes)
    return Rollout(
        item=data,
        item_id=episodes[0].item_id,
        episodes=tuple(episodes),
        task_id=task_id,
        evaluation=episodes[0].evaluation,
        started_at=start,
        duration_s=max(e.started_at + e.latency_s for e in episodes) - start,
    )


def ended_from_outside(unit: Unit) -> Episode:
    """The episode of a unit that never ran, or that did not end when it was told to."""
    item, (status, error) = unit.submission, unit.verdict or (EpisodeStatus.CANCELLED, "")
    return Episode(
        evaluation=item.evaluation,
        item_id=item.item_id,
        index=unit.index,
        status=status,
        error=error,
        started_at=time.time(),
    )


def episode_seed(run_seed: int, item_id: str, index: int) -> int:
    """31 bits of sha256 over (run seed, item id, episode index): the same in every run, whatever runs beside it."""
    digest = hashlib.sha256(f"{run_seed}\0{item_id}\0{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") & 0x7FFF_FFFF


async def _outcome(unit: Unit, engine: EpisodeEngine) -> Outcome:
    item = unit.submission
    where = f"item {item.item_id!r}, episode {unit.index}"
    try:
        async with unit.clock:
            value = await item.workflow.arun_episode(engine, _fresh(item.data))
        return judge(value, where, engine, item.reward_range)
    except BaseException as error:  # SystemExit or pytest's outcomes in a workflow must not end the loop
        return fault(error, unit, engine)


def _episode(
    unit: Unit,
    engine: EpisodeEngine,
    outcome: Outcome,
    texts: tuple[str, str],
    seed: int,
    started_at: float,
    latency_s: float,
) -> Episode:
    item, score = unit.submission, outcome.score
    last = engine.exchanges[-1][1] if engine.exchanges else None
    return Episode(
        evaluation=item.evaluation,
        item_id=item.item_id,
        index=unit.index,
        status=outcome.status,
        reward=score.value if score else None,
        metrics=score.metrics if score else {},
        prompt=texts[0],
        completion=texts[1],
        reasoning=last.reasoning if last else "",
        extracted=score.extracted if score else None,
        gold=score.gold if score else None,
        stop_reason=last.stop_reason if last else "",
        input_tokens=sum(response.input_len for _, response in engine.exchanges),
        output_tokens=sum(response.output_len for _, response in engine.exchanges),
        requests=engine.requests,
        attempts=engine.progress.total_attempts,
        latency_s=latency_s,
        started_at=started_at,
        replica=engine.progress.replica,
        seed=seed,
        error=outcome.error,
        traceback=outcome.traceback,
        transcript=tuple(engine.transcript),
    )


def _fresh(value: Any) -> Any:
    """A copy of the record's dicts, lists, tuples and sets, so that an episode's changes stay its own."""
    if isinstance(value, Mapping):
        return {key: inner if type(inner) in _PLAIN else _fresh(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [inner if type(inner) in _PLAIN else _fresh(inner) for inner in value]
    if type(value) is tuple:  # it may hold lists
        return tuple(map(_fresh, value))
    return value.copy() if isinstance(value, set | bytearray) else value
