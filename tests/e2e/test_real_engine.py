"""The embedded engine: a checkpoint that cannot be served, a server that is killed, prompts that are too long."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.sessions import TINY, Session
from support.waiting import until

DATA = TINY.parent.parent / "evals/data/arithmetic.jsonl"
SUITE = """
from pytest_areal_eval import evaluation

@evaluation(
    "data.jsonl",
    prompt=lambda r: r["question"] + "\\nPlease put your final answer within \\\\boxed{}.",
    reward_fn="pytest_areal_eval.rewards.gsm8k_reward_fn",
    enable_thinking=False,
    max_new_tokens=200,
)
def test_arithmetic(rollout):
    pass
"""


def suite(session: Session, rows: int, *more: dict[str, str]) -> Session:
    """The first ``rows`` problems that the tiny model was trained for, and ``more`` of them."""
    lines = DATA.read_text().splitlines()[:rows] + [json.dumps(row) for row in more]
    (session.path / "data.jsonl").write_text("\n".join(lines) + "\n")
    return session.write(SUITE)


def with_a_broken_template(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }")


def with_torn_weights(model: Path) -> None:
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("spoil", "status", "said"),
    [
        (with_a_broken_template, 4, r"--model=\S+: its chat template is no template: line 1: "),
        (with_torn_weights, 16, r"cannot serve the checkpoint \S+: \w+"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_one_message(
    session: Session, spoil: Callable[[Path], None], status: int, said: str
) -> None:
    model = session.path / "ckpt"
    model.mkdir()
    for file in TINY.iterdir():
        if file.is_file():
            (model / file.name).write_bytes(file.read_bytes())
    spoil(model)
    assert suite(session, 8).run(f"--model={model}") == status, session.output
    text = session.output
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    assert re.search(said, text), text
    assert "passed" not in text
    assert not list(session.path.rglob("*.2.log")), "it was started again"
    session.leaves_nothing()


def test_a_killed_server_is_started_again_and_a_prompt_that_is_too_long_is_counted(session: Session) -> None:
    """C62: a prompt beyond the context is a status of its own, before any request; nothing is cut in silence."""
    suite(session, 11, {"id": "long", "question": "How many? " * 3000, "answer": "1"})
    session.start(f"--model={TINY}", "--max-concurrency=1", "--n-samples=2", "--gate=error_rate <= 0.5")
    until(lambda: len(session.rows) > 5, "five episodes", 60)
    server = max(session.processes("-m pytest_areal_eval.engines.hf_server"))
    os.kill(server, signal.SIGKILL)
    assert session.wait(90) == pytest.ExitCode.TESTS_FAILED
    text = session.output
    status = {(row["item_id"], row["index"]): row["status"] for row in session.rows}
    assert len(status) == len(session.rows) == 24
    assert {status["long", index] for index in range(2)} == {"prompt_too_long"}
    assert set(status.values()) - {"prompt_too_long"} <= {"scored", "truncated", "empty"}
    assert "prompt_too_long" in text
    assert "gate PASS" in text
    assert re.search(r"^\d\d:\d\d:\d\d eval-rollout/0 was lost: ", text, re.MULTILINE), text
    assert {event["kind"] for event in session.run_json()["events"]} >= {"lost", "ready"}
    session.leaves_nothing()


def test_a_hub_name_is_served_from_the_cache_and_one_that_is_nowhere_is_one_message(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither waits for a network that is not there."""
    monkeypatch.setenv("HF_HUB_CACHE", str(session.path / "hub"))
    repo = session.path / "hub" / "models--lab--tiny"
    snapshot = repo / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("c0ffee")
    for file in TINY.iterdir():
        if file.is_file():
            (snapshot / file.name).write_bytes(file.read_bytes())
    assert suite(session, 4).run("--model=lab/tiny") == pytest.ExitCode.OK, session.output
    assert session.run_json()["models"]["lab/tiny"]["fingerprint"]["kind"] == "hub"
    assert session.run("--model=lab/tny", limit_s=30) == pytest.ExitCode.USAGE_ERROR
    assert (
        "ERROR: --model=lab/tny: no such folder, not in the hub's cache here, and the hub cannot be" in session.output
    )
    assert "hf download lab/tny" in session.output
    session.leaves_nothing()
