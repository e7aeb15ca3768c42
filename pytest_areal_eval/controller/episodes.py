"""One run of a workflow on one item, and the one place that decides how it ended."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_areal_eval.agents import Agents
from pytest_areal_eval.api import Episode, EpisodeStatus, GenerationHyperparameters, Rollout, Score
from pytest_areal_eval.controller.client import EngineClient
from pytest_areal_eval.controller.clock import Clock
from pytest_areal_eval.controller.place import Place
from pytest_areal_eval.controller.recording import EpisodeEngine, Note
from pytest_areal_eval.engines.base import Engine
from pytest_areal_eval.errors import AgentError, ArealEvalError, EngineLost, GraderError, GraderTimeout, PromptTooLong
from pytest_areal_eval.journal.answers import Answer
from pytest_areal_eval.rewards.answers import unfinished_thinking
from pytest_areal_eval.rewards.pool import RewardPool
from pytest_areal_eval.rewards.values import as_score
from pytest_areal_eval.stats.cells import cells_state
from pytest_areal_eval.stats.tracker import Trackers, adopt
from pytest_areal_eval.workflows import context
from pytest_areal_eval.workflows.prompts import Prompts

TRACEBACK_LIMIT = 4000
_PLAIN = frozenset({str, int, float, bool, type(None)})
_PACKAGE = str(Path(__file__).parents[1])
_ASYNCIO = str(Path(asyncio.__file__).parent)


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an episode came to, before its record is added."""

    status: EpisodeStatus
    score: Score | None = None
    error: str = ""
    traceback: str = ""


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
    context.set(
        context.WorkflowContext(
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
    )
    recorded = adopt(around.trackers)
    outcome = await _outcome(unit, engine)
    texts: tuple[str, str] = "", ""
    try:
        texts = engine.prompt(), engine.completion()
    except Exception as error:  # whatever the workflow's own tokenizer raises
        outcome = _fault(error, unit, engine)
    episode = _episode(unit, engine, outcome, texts, seed, started_at, time.perf_counter() - started)
    # A copy, since a thread of the workflow's may outlive it.
    return dataclasses.replace(episode, stats=cells_state(dict(recorded))) if recorded else episode


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
        return _judge(value, where, engine)
    except BaseException as error:  # SystemExit or pytest's outcomes in a workflow must not end the loop
        return _fault(_single(error), unit, engine)


def _judge(value: Any, where: str, engine: EpisodeEngine) -> Outcome:
    if value is None:
        return Outcome(EpisodeStatus.REJECTED, error="the workflow returned None: it rejected the episode")
    score = as_score(value, where)
    return Outcome(_scored_status(engine), score, traceback=score.failure[-TRACEBACK_LIMIT:])


def _scored_status(engine: EpisodeEngine) -> EpisodeStatus:
    """How the last answer ended; without a request there is nothing to hold against the score."""
    if not engine.exchanges:
        return EpisodeStatus.SCORED
    request, response = engine.exchanges[-1]
    text = engine.completion()
    if _thinks_still(engine.prompt() if request.input_ids else "", text):
        return EpisodeStatus.UNFINISHED_THINKING
    if not text.strip() and response.stop_reason != "tool_calls":
        return EpisodeStatus.EMPTY
    return EpisodeStatus.TRUNCATED if response.stop_reason == "length" else EpisodeStatus.SCORED


def _thinks_still(prompt: str, text: str) -> bool:
    """Whether the answer ended inside its thinking, which some templates open at the very end of the prompt."""
    return unfinished_thinking(text) or ("</think>" not in text and prompt.rstrip().endswith("<think>"))


def _fault(error: BaseException, unit: Unit, engine: EpisodeEngine) -> Outcome:
    if unit.submission.cancelled:
        raise asyncio.CancelledError
    if unit.verdict is not None:
        return Outcome(unit.verdict[0], error=unit.verdict[1])
    if unit.clock.expired:
        return Outcome(EpisodeStatus.TIMEOUT, error=_late(unit, engine))
    if isinstance(error, GraderTimeout | GraderError):
        timed_out = isinstance(error, GraderTimeout)
        status = EpisodeStatus.GRADER_TIMEOUT if timed_out else EpisodeStatus.GRADER_ERROR
        trace = str(getattr(error, "traceback", "") or "")
        return Outcome(status, Score(0.0), error=str(error), traceback=trace[-TRACEBACK_LIMIT:])
    if isinstance(error, AgentError):
        return Outcome(EpisodeStatus.WORKFLOW_ERROR, error=str(error), traceback=error.traceback[-TRACEBACK_LIMIT:])
    if isinstance(error, PromptTooLong):
        return Outcome(EpisodeStatus.PROMPT_TOO_LONG, error=str(error))
    if isinstance(error, EngineLost):
        return Outcome(EpisodeStatus.ENGINE_LOST, error=str(error))
    return Outcome(
        EpisodeStatus.WORKFLOW_ERROR,
        error=f"{type(error).__name__}: {error}" if str(error) else f"the workflow raised {type(error).__name__}",
        traceback=user_frames(error),
    )


def _late(unit: Unit, engine: EpisodeEngine) -> str:
    limit = f"no result within {unit.clock.limit_s:g} s"
    if engine.requests > len(engine.exchanges):
        return f"{limit}: request {engine.requests} was unanswered ({engine.progress})"
    return f"{limit}: all {engine.requests} requests were answered; the workflow or its grader was still at work"


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


def user_frames(error: BaseException) -> str:
    """The traceback without this package's and asyncio's frames; whole if nothing else is left of a bug of ours."""
    whole = traceback.TracebackException.from_exception(error)
    kept = [f for f in whole.stack if not f.filename.startswith((_PACKAGE, _ASYNCIO))]
    if not kept and isinstance(error, ArealEvalError):
        return ""  # its message says all
    whole.stack = traceback.StackSummary.from_list(kept or whole.stack)
    return "".join(whole.format(chain=False))[-TRACEBACK_LIMIT:]


def _single(error: BaseException) -> BaseException:
    """The one exception inside a group, as task groups raise it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _fresh(value: Any) -> Any:
    """A copy of the record's dicts and lists, so that an episode's changes stay its own."""
    if isinstance(value, Mapping):
        return {key: inner if type(inner) in _PLAIN else _fresh(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [inner if type(inner) in _PLAIN else _fresh(inner) for inner in value]
    return value
