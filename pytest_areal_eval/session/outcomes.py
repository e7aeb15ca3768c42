"""From a rollout to what pytest reports: passed, missed or failed, with the score on the report.

Invariant: a report of an evaluated item carries its whole result (``report.areal_eval``), so the same scoreboard works
in one process and on an xdist controller; a result is attached to exactly one call report.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.api import Episode, EpisodeStatus, Rollout
from pytest_areal_eval.collection.groups import Group, membership
from pytest_areal_eval.errors import ArealEvalError
from pytest_areal_eval.report.examples import example_of
from pytest_areal_eval.report.reasons import reason_of
from pytest_areal_eval.report.spans import spans_of
from pytest_areal_eval.report.text import printable
from pytest_areal_eval.session.session import SESSION, EvaluationSession
from pytest_areal_eval.stats.results import EpisodeResult, ItemResult

if TYPE_CHECKING:
    from pytest_areal_eval.controller import RolloutController

MISSED = "missed"
_PICKED = pytest.StashKey[Rollout]()


def pick_up(item: pytest.Item, controller: RolloutController | None) -> Rollout | None:
    """The item's rollout; starts its group first where nobody did (collection order)."""
    found = membership(item)
    if found is None or controller is None or item.config.option.setuponly:
        return None
    session = item.config.stash[SESSION]
    group, _ = found
    if not group.started:
        _begin(item, group, session, controller)
    rollout = session.rollout(item, controller, lambda: None)
    if session.was_lost(item):
        _stop(item, session, session.engine_failure())
    item.stash[_PICKED] = rollout
    return rollout


def _begin(item: pytest.Item, group: Group, session: EvaluationSession, controller: RolloutController) -> None:
    funcargs: Mapping[str, Any] = getattr(item, "funcargs", {})
    failure: ArealEvalError | None = None
    try:
        session.wait_ready(controller)
        session.begin(group, controller, {name: funcargs[name] for name in group.extra_arguments})
    except ArealEvalError as error:
        failure = error
    if failure is not None:
        _stop(item, session, failure)


def _stop(item: pytest.Item, session: EvaluationSession, error: ArealEvalError | None) -> None:
    """End the session on this item: one message, not one for each that would have followed."""
    _stop_with(item, session, error)
    pytest.fail(f"areal-eval: {str(error).splitlines()[0]}", pytrace=False)


def _stop_with(item: pytest.Item, session: EvaluationSession, error: ArealEvalError | None) -> None:
    session.engine_error = error
    item.session.shouldstop = f"areal-eval: {type(error).__name__}"


def call(item: pytest.Function) -> bool | None:
    """The call phase of an evaluation's test; None leaves the body to pytest.

    Raises:
        pytest.fail.Exception: an episode ended in an error, or an async test's assertion failed.
    """
    found = membership(item)
    if found is None:
        return None
    group, _ = found
    engine: Any = item.funcargs.get("engine")
    rollout = pick_up(item, engine) if group.plan.is_async else item.stash.get(_PICKED, None)
    if rollout is None:
        return None
    wrong = [e for e in rollout.episodes if e.status.kind == "error" or e.status is EpisodeStatus.GRADER_ERROR]
    if wrong:
        pytest.fail(explain(wrong, len(rollout.episodes)), pytrace=False)
    if not group.plan.is_async:
        return None
    for episode in rollout.episodes if group.plan.strict else ():
        if episode.traceback:  # the assertion that failed
            pytest.fail(episode.traceback, pytrace=False)
    return True


def explain(wrong: Sequence[Episode], n_samples: int) -> str:
    """What went wrong with an item's episodes: the first in full, the others counted."""
    first = wrong[0]
    which = f"episode {first.index} of {n_samples}: " if n_samples > 1 else ""
    more = f"\n(and {len(wrong) - 1} more of its {n_samples} episodes)" if len(wrong) > 1 else ""
    trace = f"\n{first.traceback.rstrip()}" if first.traceback else ""
    return f"{which}{first.status}: {first.error or 'no reason was given'}{trace}{more}"


def annotate(item: pytest.Item, call_info: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Put the item's result, its duration and its score on its call report."""
    found = membership(item)
    failure = call_info.excinfo.value if call_info.excinfo is not None else None
    if found is not None and call_info.when == "setup" and isinstance(failure, ArealEvalError):
        _stop_with(item, item.config.stash[SESSION], failure)  # a fixture's, which each test would say again
        report.longrepr = f"areal-eval: {str(failure).splitlines()[0]}"
    if found is None or call_info.when != "call" or _PICKED not in item.stash:
        return
    group, _ = found
    rollout = item.stash[_PICKED]
    del item.stash[_PICKED]
    session = item.config.stash[SESSION]
    session.inbox.forget(item)
    expected = _expected_failure_is_the_gates(call_info, report)
    spans = spans_of(rollout.episodes)
    report.duration, report.start, report.stop = spans.total_s, spans.began, spans.ended
    result = ItemResult(rollout.item_id, tuple(EpisodeResult.from_episode(e) for e in rollout.episodes))
    missed = report.passed and not group.plan.strict and rollout.reward < group.plan.spec.pass_mark
    carried = {
        "group": group.key,
        "word": MISSED if missed else "",
        "xfail": expected,
        "result": result.to_dict(),
        "spans": spans.pairs(),
    }
    if rollout.reward < group.plan.spec.pass_mark:
        carried["example"] = example_of(rollout.item_id, rollout.episodes).to_dict()
    reason = reason_of(rollout.episodes)
    if reason:
        carried["reason"] = reason
    _disarm(report)
    vars(report)["areal_eval"] = carried  # xdist carries a report's attributes over
    item.user_properties[:] = [*_foreign(item.user_properties), *score_properties(rollout)]
    report.user_properties = list(item.user_properties)


def _disarm(report: pytest.TestReport) -> None:
    """What a model wrote may be escape sequences; in a traceback or in captured output a terminal would obey them."""
    if report.failed and printable(text := report.longreprtext) != text:
        report.longrepr = printable(text)
    report.sections = [(title, printable(content)) for title, content in report.sections]


def _expected_failure_is_the_gates(
    call_info: pytest.CallInfo[None], report: pytest.TestReport
) -> tuple[str, bool] | None:
    """``xfail`` on an evaluation speaks of its gates: an item whose body held is no unexpected pass.

    Returns:
        The mark's reason, and whether it showed to be strict; None without a mark (``pytest.xfail()`` is none).
    """
    reason = getattr(report, "wasxfail", None)
    strict = isinstance(report.longrepr, str) and report.longrepr.startswith("[XPASS(strict)]")
    if call_info.excinfo is not None:
        own = isinstance(call_info.excinfo.value, pytest.xfail.Exception)
        return (reason, False) if reason is not None and not own else None
    if reason is None and not strict:
        return None
    if reason is None:
        reason = str(report.longrepr).partition("] ")[2]
    else:
        del report.wasxfail
    report.outcome, report.longrepr = "passed", None
    return reason, strict


def score_properties(rollout: Rollout) -> list[tuple[str, object]]:
    """What ``--junitxml`` and other reports show of an item's score."""
    statuses = sys.intern(",".join(e.status.value for e in rollout.episodes))
    tokens = sum(e.output_tokens for e in rollout.episodes)
    return [("areal_reward", round(rollout.reward, 6)), ("areal_status", statuses), ("areal_output_tokens", tokens)]


def _foreign(properties: Sequence[tuple[str, object]]) -> list[tuple[str, object]]:
    return [(name, value) for name, value in properties if not name.startswith("areal_")]


def word_of(report: pytest.TestReport) -> str:
    """``missed``, or nothing."""
    carried: Mapping[str, Any] = getattr(report, "areal_eval", {})
    return str(carried.get("word", "")) if report.when == "call" and report.passed else ""
