"""How an episode ended: the one place that decides."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import EpisodeStatus, Score
from pytest_areal_eval.errors import (
    AgentError,
    ArealEvalError,
    EngineLost,
    GraderError,
    GraderTimeout,
    PromptError,
    PromptTooLong,
)
from pytest_areal_eval.rewards.answers import unfinished_thinking
from pytest_areal_eval.rewards.values import as_score

if TYPE_CHECKING:
    from pytest_areal_eval.controller.episodes import Unit
    from pytest_areal_eval.controller.recording import EpisodeEngine

TRACEBACK_LIMIT = 4000
_PACKAGE = str(Path(__file__).parents[1])
_ASYNCIO = str(Path(asyncio.__file__).parent)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an episode came to, before its record is added."""

    status: EpisodeStatus
    score: Score | None = None
    error: str = ""
    traceback: str = ""


def judge(value: Any, where: str, engine: EpisodeEngine, reward_range: tuple[float, float] | None = None) -> Outcome:
    """The outcome of a workflow that returned.

    Args:
        value: what it returned.
        where: item and episode, for messages.
        engine: what it asked, and what was answered.
        reward_range: lowest and highest reward; None: every finite number.

    Raises:
        GraderError: it is no reward, or one out of range.
    """
    if value is None:
        return Outcome(EpisodeStatus.REJECTED, error="the workflow returned None: it rejected the episode")
    score = as_score(value, where, reward_range)
    return Outcome(_scored_status(engine), score, traceback=score.failure[:TRACEBACK_LIMIT])


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


def fault(error: BaseException, unit: Unit, engine: EpisodeEngine) -> Outcome:
    """The outcome of a workflow that raised.

    Raises:
        CancelledError: nobody waits for its item any more.
    """
    error = _single(error)
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
    if isinstance(error, PromptError):
        return Outcome(EpisodeStatus.WORKFLOW_ERROR, error=str(error))
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
    answered = f"all {engine.requests} requests were answered" if engine.requests else "no request was made"
    return f"{limit}: {answered}; the workflow or its grader was still at work"


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
