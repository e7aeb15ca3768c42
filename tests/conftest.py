"""What all tests share: pytester, and the ways to run a suite of evaluations inside a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from support.rule_engine import RuleEngine

LATENCY = {latency}
ENGINES = []

def answer(question, number):
    {rule}

@pytest.fixture(scope="session")
def controller(pytestconfig):
    engine = RuleEngine(answer, latency_s=LATENCY)
    ENGINES.append(engine)
    made = RolloutController(engine, settings=ControllerSettings(max_concurrency={concurrency}))
    made.initialize()
    yield made
    made.destroy()
"""

SUITE = """
from pytest_areal_eval import evaluation

def grade(prompt, completions, prompt_ids, completion_ids, answer, **columns):
    return float(completions == str(answer))

ROWS = [{{"id": f"g{{n}}", "question": f"q{{n}}", "answer": f"a{{n}}"}} for n in range({rows})]

@evaluation(ROWS, reward_fn=grade{more})
def test_gsm(rollout):
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.Pytester]:
    """Make a suite with one evaluation ``test_gsm`` of ``rows`` items that a rule answers; g1, g4, ... are wrong.

    Called with ``rows``, ``rule`` (body of ``answer(question, number)``), ``latency`` (source), ``more`` (decorator
    arguments), ``source`` (the whole test file instead) and ``concurrency``.
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
    ) -> pytest.Pytester:
        pytester.makeini("[pytest]\naddopts = -p no:randomly -p no:asyncio -p no:cov\n")
        pytester.makeconftest(CONFTEST.format(rule=rule, latency=latency, concurrency=concurrency))
        pytester.makepyfile(test_evals=source or SUITE.format(rows=rows, more=more))
        return pytester

    return make


@pytest.fixture
def journal_rows(pytester: pytest.Pytester) -> Callable[[], Sequence[dict[str, Any]]]:
    """The rows of the newest run's journal."""

    def read() -> Sequence[dict[str, Any]]:
        newest = max((pytester.path / "eval-results").glob("*/episodes.jsonl"), key=lambda p: p.stat().st_mtime_ns)
        return [json.loads(line) for line in newest.read_text().splitlines()]

    return read
