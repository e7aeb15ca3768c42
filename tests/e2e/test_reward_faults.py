"""A reward that misbehaves costs its own episode: the others are scored, the run ends in time, no process is left."""

from __future__ import annotations

import json
import time

import pytest
from support.sessions import Session

SUITE = """
import ctypes, os, subprocess, sys, time
from pytest_areal_eval import evaluation

def hang():
    while True:
        pass

def fork():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    if os.fork() == 0:
        time.sleep(600)
    time.sleep(600)

def eat():
    return len(bytearray(2**36))

KINDS = dict(
    good=lambda: 1.0, bad=lambda: 0.0, raises=lambda: 1 / 0, hangs=hang, sleeps=lambda: time.sleep(600), forks=fork,
    eats=eat, exits=lambda: sys.exit(3), dies=lambda: os._exit(0), crashes=lambda: ctypes.string_at(0),
    none=lambda: None, text=lambda: "yes", nan=lambda: float("nan"), beyond=lambda: 1.5, prints=lambda: print("x") or 1,
    interrupts=lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
)

def grade(prompt, completions, prompt_ids, completion_ids, **columns):
    return KINDS[completions]()

ROWS = [{"id": name, "question": name} for name in KINDS] + [{"id": f"more{n}", "question": "good"} for n in range(20)]

@evaluation(ROWS, reward_fn=grade, reward_timeout=1)
def test_kinds(rollout):
    pass
"""
TIMEOUTS = {"hangs", "sleeps", "forks"}
ERRORS = {"raises", "eats", "exits", "dies", "crashes", "none", "text", "nan", "beyond", "interrupts"}


def test_a_reward_costs_its_own_episode_whatever_it_does(session: Session) -> None:
    """C12, C38, C89: a grader's fault is a status of its own, each named, and nothing that it started stays."""
    kinds = ["good", "bad", "prints", *TIMEOUTS, *ERRORS]
    rows = [{"id": name, "completion": name} for name in kinds]
    rows += [{"id": f"more{n}", "completion": "good"} for n in range(20)]
    (session.path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    began = time.monotonic()
    assert session.write(SUITE).run("--replay=r.jsonl") == pytest.ExitCode.TESTS_FAILED
    assert time.monotonic() - began < 45
    session.leaves_nothing()

    status = {row["item_id"]: row["status"] for row in session.rows}
    assert len(status) == len(rows)
    assert {name for name, found in status.items() if found == "grader_timeout"} == TIMEOUTS
    assert {name for name, found in status.items() if found == "grader_error"} == ERRORS
    assert {found for name, found in status.items() if name not in TIMEOUTS | ERRORS} == {"scored"}

    text = session.output
    assert "INTERNALERROR" not in text
    assert "36 episodes = 23 scored + 13 grader faults + 0 errors" in text
    for name, said in {
        "raises": "reward function 'grade' raised ZeroDivisionError: division by zero",
        "eats": "reward function 'grade' raised MemoryError",
        "exits": "reward function 'grade' raised SystemExit: 3",
        "dies": "reward function 'grade' ended its process with exit status 0",
        "crashes": "reward function 'grade' was killed by SIGSEGV",
        "none": "the reward is NoneType None, not one number",
        "nan": "the reward is nan, not a finite number",
        "beyond": "the reward is 1.5, outside 0 to 1",
    }.items():
        assert f"\ngrader_error: test_kinds[{name}] episode 0: {said}" in text
