"""Whole sessions whose replicas are stand-ins for vLLM or SGLang, started by the command that a person would type."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from typing import Literal

from standin import engines
from support.sessions import MARK, TINY, Session
from support.waiting import until

SUITE = """
from pytest_areal_eval import evaluation

ANSWER = r"The answer is \\boxed{{42}}."
ROWS = [{{"id": f"g{{n}}", "question": f"Question {{n}}.", "answer": ANSWER}} for n in range({rows})]

@evaluation(ROWS, workflow="support.ask.Ask", gates=["reward >= 1.0", "error_rate <= 0.0"])
def test_gsm(rollout):
    pass
"""


def words(kind: Literal["vllm", "sglang"], session: Session, latency_s: float, **more: object) -> list[str]:
    """Options that have stand-ins for an engine started; all that they start carries the session's mark."""
    command = shlex.join([sys.executable, str(engines.__file__), kind])
    script = json.dumps({"latency_s": latency_s, **more})
    return [
        f"--model={TINY}",
        f"--engine-cmd={command}",
        f"--server-env=STANDIN={script}",
        f"--server-env={MARK}={session.mark}",
    ]


def shares(session: Session) -> Counter[str]:
    """How many episodes each replica has answered."""
    return Counter(row["replica"] for row in session.rows)


def until_answers(session: Session, count: int, limit_s: float = 40.0) -> None:
    """Wait until the journal has more episodes than that; a session that ends before has failed."""
    process = session.process
    assert process is not None
    until(lambda: len(session.rows) > count or process.poll() is not None, f"{count} episodes", limit_s)
    assert process.poll() is None, session.output
