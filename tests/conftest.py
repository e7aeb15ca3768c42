"""What all tests share: pytester, and the ways to run a suite of evaluations inside a test."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.plugins import without

pytest.register_assert_rewrite("support.scheduler_contract")
pytest_plugins = ["pytester"]

CONFTEST = """
import json
import pathlib
import sys
import pytest

sys.path.append({tests!r})  # xdist gives its workers the path of long before
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from support.rule_engine import RuleEngine

LATENCY = {latency}

def answer(question, number):
    {rule}

@pytest.fixture(scope="session")
def controller(pytestconfig):
    engine = RuleEngine(answer, latency_s=LATENCY)
    made = RolloutController(engine, settings=ControllerSettings(max_concurrency={concurrency}))
    made.initialize()
    yield made
    made.destroy()
    counts = {{"requests": engine.requests, "peak": engine.peak, "cancelled": engine.cancelled}}
    pathlib.Path("engine.json").write_text(json.dumps(counts))
"""

SUITE = """
from pytest_areal_eval import evaluation

ROWS = [{{"id": f"g{{n}}", "question": f"q{{n}}", "answer": f"a{{n}}"}} for n in range({rows})]

@evaluation(ROWS, workflow="support.ask.Ask"{more})
def test_gsm(rollout):
    pass
"""


WARM = ("session.conclusion", "controller", "journal", "report.table", "stats", "workflows.rlvr", "workflows.testbody")
"""Modules imported once for all suites: pytester forgets what was imported during a run."""


@pytest.fixture(scope="session")
def warm() -> None:
    """Import what every suite imports."""
    for name in WARM:
        importlib.import_module(f"pytest_areal_eval.{name}")
    importlib.import_module("omegaconf")  # its YAML parser in C does not survive a second import
    importlib.import_module("transformers.models.auto.tokenization_auto")  # nor this, begun by a thread of a run
    importlib.import_module("rich.table")
    importlib.import_module("scipy.stats")


@pytest.fixture(scope="session", autouse=True)
def no_page_of_the_ci_job() -> Iterator[None]:
    """Sessions inside of tests leave the page of the job that runs the tests alone."""
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("GITHUB_STEP_SUMMARY", raising=False)
        yield


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm: None) -> Callable[..., pytest.Pytester]:
    """Make a suite with one evaluation ``test_gsm`` of ``rows`` items that a rule answers; g1, g4, ... are wrong.

    Called with ``rows``, ``rule`` (body of ``answer(question, number)``), ``latency`` (source), ``more`` (decorator
    arguments), ``source`` (the whole test file instead), ``concurrency`` and ``plugins`` (names as in ``-p no:NAME``
    of the others that are loaded).
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv("CI", raising=False)

    def make(
        rows: int = 6,
        rule: str = "n = int(question[1:]); return f'a{n}' if n % 3 != 1 else 'wrong'",
        latency: str = "0.0",
        more: str = "",
        source: str | None = None,
        concurrency: int = 16,
        plugins: Sequence[str] = (),
        ini: str = "",
    ) -> pytest.Pytester:
        pytester.makeini(f"[pytest]\naddopts = {without(*plugins)}\n{ini}\n")
        pytester.makeconftest(
            CONFTEST.format(tests=str(Path(__file__).parent), rule=rule, latency=latency, concurrency=concurrency)
        )
        pytester.makepyfile(test_evals=source or SUITE.format(rows=rows, more=more))
        return pytester

    return make


@pytest.fixture
def journal_rows(pytester: pytest.Pytester) -> Callable[[], Sequence[dict[str, Any]]]:
    """The episodes of the newest run's journal."""

    def read() -> Sequence[dict[str, Any]]:
        newest = max((pytester.path / "eval-results").glob("*/episodes.jsonl"), key=lambda p: p.stat().st_mtime_ns)
        rows = [json.loads(line) for line in newest.read_text().splitlines()]
        return [row for row in rows if row["kind"] == "episode"]

    return read


@pytest.fixture
def engine_counts(pytester: pytest.Pytester) -> Callable[[], dict[str, int]]:
    """What the last run asked of the suite's engine; nothing where it never came up."""

    def read() -> dict[str, int]:
        file = pytester.path / "engine.json"
        counts = json.loads(file.read_text()) if file.exists() else {}
        file.unlink(missing_ok=True)
        return counts

    return read
