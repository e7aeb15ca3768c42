"""Agents inside of whole sessions."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.sessions import Session
from support.waiting import until

pytest.importorskip("openai")

AGENT = """
    async def run(self, data, base_url=None, api_key=None, http_client=None):
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages = [{"role": "user", "content": data["question"]}]
        reply = await client.chat.completions.create(model="default", messages=messages)
        return reply.choices[0].message.content == data["answer"]
"""
SUITE = f"""
from pytest_areal_eval import evaluation

class Agent:
{AGENT}

ROWS = [{{"id": f"g{{n}}", "question": f"q{{n}}", "answer": f"a{{n}}"}} for n in range(6)]

@evaluation(ROWS, workflow=Agent, gates=["reward >= 0.6"])
def test_gsm(rollout):
    pass
"""
SLOW = """
import pathlib, subprocess, time
from pytest_areal_eval import evaluation

class Agent:
    async def run(self, data, **where):
        pathlib.Path("up").touch()
        time.sleep(60)

@evaluation([{"id": "a"}], workflow=Agent)
def test_slow(rollout):
    pass
"""


def test_an_agent_of_the_test_file_is_scored_item_by_item(
    suite: Callable[..., pytest.Pytester], journal_rows: Callable[[], Sequence[dict[str, Any]]]
) -> None:
    run = suite(source=SUITE).runpytest_inprocess("-W", "error")
    run.assert_outcomes(passed=5)  # four items and the gate; g1 and g4 are missed
    run.stdout.fnmatch_lines(["*gate PASS*reward 0.6667 >= 0.6*"])
    episodes = [row for row in journal_rows() if row["kind"] == "episode"]
    assert [(row["requests"], len(row["transcript"])) for row in episodes] == [(1, 1)] * 6


def test_a_sync_run_is_one_message(suite: Callable[..., pytest.Pytester]) -> None:
    run = suite(source=SUITE.replace("async def run", "def run").replace("await ", "")).runpytest_inprocess()
    assert run.ret == pytest.ExitCode.INTERRUPTED
    run.stdout.fnmatch_lines(["*workflow=test_evals.Agent: its 'run' is not async", "Write 'async def run(*"])
    run.stdout.no_fnmatch_line("*INTERNALERROR*")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    yield made
    made.end()


CONFTEST = """
import pytest
from pytest_areal_eval.controller import RolloutController
from support.rule_engine import RuleEngine

@pytest.fixture(scope="session")
def controller():
    made = RolloutController(RuleEngine(lambda question, number: "42"))
    made.initialize()
    yield made
    made.destroy()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_blocked_agent_is_gone_when_pytest_is(session: Session, number: signal.Signals) -> None:
    session.write(SLOW, conftest=CONFTEST).start()
    until(lambda: (session.path / "up").exists(), 30)
    session.send(number)
    session.wait(30)
    session.leaves_nothing()
