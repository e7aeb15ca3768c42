"""Each gate becomes one more test report, so that JUnit, the exit status and the summary agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.report.scoreboard import Row, Scoreboard
from pytest_areal_eval.stats import Baseline, Verdict, decide, undecided
from pytest_areal_eval.stats.verdicts import Policy

Outcome = Literal["passed", "failed", "skipped"]
UNDECIDED = ("skip", "inconclusive")
"""Verdicts that are neither for nor against the checkpoint; such a gate is a skipped test, whatever was expected."""


@dataclass(frozen=True)
class Decided:
    """A gate's verdict and the test that carries it; it may be expected to fail: a reason, and whether strictly."""

    nodeid: str
    row: Row
    verdict: Verdict
    expected_failure: tuple[str, bool] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For ``run.json``."""
        return self.verdict.to_dict(self.row.name)


def decide_gates(
    session: pytest.Session,
    board: Scoreboard,
    *,
    even_partial: bool,
    policy: Policy = "point",
    baseline: Callable[[Row], Baseline | None] = lambda row: None,
) -> list[Decided]:
    """Decide every gate of every evaluation that was selected, and report each as a test.

    Args:
        session: where the reports go.
        board: the results.
        even_partial: decide on a chosen part of an evaluation too.
        policy: decide by the value or by its interval.
        baseline: finds what ``baseline`` means in an evaluation's gates.
    """
    decided = []
    for row in board.rows.values():
        summary = row.summary() if row.gates else None
        for gate in row.gates:
            assert summary is not None
            partial = None if even_partial else row.partial_reason()
            try:
                reference = baseline(row) if gate.from_baseline else None
                verdict = decide(gate, summary, partial_reason=partial, policy=policy, baseline=reference)
            except ConfigError as error:
                verdict = undecided(gate, summary, error)
            found = Decided(f"{row.key}::gate[{gate}]", row, verdict, row.expected_failure())
            _report(session, found)
            decided.append(found)
    return decided


def _report(session: pytest.Session, found: Decided) -> None:
    hook = session.config.hook
    location = (found.row.file, None, f"{found.row.name}::gate")
    hook.pytest_runtest_logstart(nodeid=found.nodeid, location=location)
    for when in ("setup", "call", "teardown"):
        hook.pytest_runtest_logreport(report=_phase(found, location, when))
    hook.pytest_runtest_logfinish(nodeid=found.nodeid, location=location)


def _phase(found: Decided, location: Any, when: Any) -> pytest.TestReport:
    outcome: Outcome
    outcome, longrepr = ("passed", None) if when != "call" else _outcome(found)
    now = time.time()
    report = pytest.TestReport(
        nodeid=found.nodeid,
        location=location,
        keywords={found.row.name: 1, "gate": 1},
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        start=now,
        stop=now,
        duration=0.0,
        user_properties=_properties(found.verdict),
    )
    expected = found.expected_failure if when == "call" and found.verdict.outcome not in UNDECIDED else None
    if expected is not None and outcome != "failed":
        report.wasxfail = expected[0]
    return report


def _outcome(found: Decided) -> tuple[Outcome, Any]:
    verdict = found.verdict
    if verdict.outcome in UNDECIDED:
        return "skipped", (found.row.file, 0, f"Skipped: {verdict.message}")
    expected = found.expected_failure
    if verdict.outcome == "pass":
        if expected is not None and expected[1]:  # as pytest has it of an unexpected pass
            return "failed", f"[XPASS(strict)] {expected[0]}"
        return "passed", None
    examples = found.row.example_lines() if verdict.value is not None else []
    text = "\n".join([f"{found.row.name}: {verdict.message}", *examples])
    return ("skipped" if expected is not None else "failed"), text


def _properties(verdict: Verdict) -> list[tuple[str, object]]:
    values = {"gate": str(verdict.gate), "value": verdict.value, "se": verdict.se, "n": verdict.n}
    return [(f"areal_{name}", value) for name, value in values.items() if value is not None]
