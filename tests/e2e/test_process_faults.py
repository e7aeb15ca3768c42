"""What ends a session early: signals at any moment, a server that dies, hangs or never starts.

Everything finished is in the journal and in the table, the exit status says what happened, no process is left.
"""

from __future__ import annotations

import os
import re
import signal

import pytest
from support.sessions import Session, standin_conftest
from support.waiting import until

SUITE = """
import time
from pytest_areal_eval import evaluation

def grade(prompt, completions, prompt_ids, completion_ids, answer="", **columns):
    return 1.0

@evaluation([{{"id": f"g{{n}}", "question": f"Question {{n}}"}} for n in range({rows})], reward_fn=grade,
            gates=["reward >= 0.5"])
def test_gsm(rollout):
    {body}
"""
SLOW = ["--latency-ms=150"]
NO_GRACE = """
from pytest_areal_eval.controller import instances, probe, upkeep
probe.PROBE_LIMIT_S, instances.STOP_GRACE_S = 0.5, 0.3  # a stopped process sees no SIGTERM
upkeep.END_TRIES = 1  # the local scheduler knows at once
"""


def suite(rows: int = 200, body: str = "pass") -> str:
    return SUITE.format(rows=rows, body=body)


def text_of_all(session: Session) -> str:
    """The output, checked for a traceback other than the server's own."""
    text = session.output
    assert "INTERNALERROR" not in text, text
    ours = re.findall(r'File ".*pytest_areal_eval/', text)
    assert not ours, text
    return text


# ---- Ctrl-C, SIGTERM, SIGKILL ---------------------------------------------------------------------------------------


def test_ctrl_c_while_collecting_leaves_nothing(session: Session) -> None:
    source = "import pathlib, time\n" + suite().replace(
        "@evaluation", "pathlib.Path('here').touch()\ntime.sleep(30)\n@evaluation"
    )
    session.write(source, conftest=standin_conftest(SLOW)).start()
    until((session.path / "here").exists, "collection")
    session.send(signal.SIGINT)
    assert session.wait(15) == pytest.ExitCode.INTERRUPTED
    session.leaves_nothing()
    assert not (session.path / "eval-results").exists()


def test_ctrl_c_while_the_server_starts_leaves_nothing(session: Session) -> None:
    session.write(suite(), conftest=standin_conftest(["--ready-after=60"])).start()
    until(lambda: session.processes("server.py"), "the server's start", 20)
    session.send(signal.SIGINT)
    assert session.wait(20) == pytest.ExitCode.INTERRUPTED
    session.leaves_nothing()


def test_ctrl_c_in_the_rollouts_prints_a_partial_table(session: Session) -> None:
    session.write(suite(), conftest=standin_conftest(SLOW)).start()
    until(lambda: len(session.rows) > 10, "ten episodes", 30)
    session.send(signal.SIGINT)
    assert session.wait(20) == pytest.ExitCode.INTERRUPTED
    session.leaves_nothing()
    text = text_of_all(session)
    assert "KeyboardInterrupt" in text
    assert re.search(r"^test_gsm +1\.0000.* [0-9]+/200 ", text, re.MULTILINE), text
    assert "gates not decided" in text
    assert session.run_json()["exit_status"] == 2


def test_a_second_ctrl_c_leaves_nothing_either(session: Session) -> None:
    session.write(suite(), conftest=standin_conftest(SLOW)).start()
    until(lambda: len(session.rows) > 5, "five episodes", 30)
    session.send(signal.SIGINT)
    until(lambda: "KeyboardInterrupt" in session.output, "the first one's effect", 10)
    session.send(signal.SIGINT)
    session.wait(20)
    session.leaves_nothing()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_session_leaves_no_process_and_a_readable_journal(session: Session, number: signal.Signals) -> None:
    """C84: results are safe on disk before any teardown."""
    session.write(suite(), conftest=standin_conftest(SLOW)).start()
    until(lambda: len(session.rows) > 10, "ten episodes", 30)
    session.send(number)
    status = session.wait(20)
    took = session.leaves_nothing()
    assert status == (pytest.ExitCode.INTERRUPTED if number == signal.SIGTERM else -signal.SIGKILL)
    assert took < 15
    assert all(row["status"] == "scored" for row in session.rows)
    assert session.run_json()["status"] in ("started", "finished")


def test_a_session_killed_while_the_server_starts_leaves_nothing(session: Session) -> None:
    session.write(suite(), conftest=standin_conftest(["--ready-after=60"])).start()
    until(lambda: session.processes("server.py"), "the server's start", 20)
    session.send(signal.SIGKILL)
    session.wait(20)
    session.leaves_nothing()


# ---- the server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["completion", "collection"])
def test_a_server_that_dies_at_start_is_one_message_with_its_logs_end(session: Session, order: str) -> None:
    """C10: infrastructure is an exit status of its own, and never a score of 0."""
    conftest = standin_conftest(["--exit-at-start=7"])
    assert session.write(suite(), conftest=conftest).run(f"--areal-order={order}") == 16
    text = text_of_all(session)
    assert text.count("  File ") == 1  # of the log's end
    assert text.count("\nthe engine did not start") == 1
    assert "command: " in text
    assert "exited with code 7" in text
    assert "log: " in text
    assert "0.0000" not in text
    session.leaves_nothing()


def test_a_server_that_dies_in_the_middle_is_started_again_once(session: Session) -> None:
    session.write(suite(40), conftest=standin_conftest([*SLOW, "--die-after=25"])).start()
    assert session.wait() == 0
    text = text_of_all(session)
    assert "41 passed" in text  # the gate is one
    assert sorted({row["item_id"] for row in session.rows}) == sorted(f"g{n}" for n in range(40))


def test_a_server_that_dies_again_ends_the_run_with_all_that_had_finished(session: Session) -> None:
    """C10, C14: no further restarts, no score of 0 for what was never answered."""
    session.write(suite(200), conftest=standin_conftest([*SLOW, "--die-after=25"])).start()
    assert session.wait() == 16
    text = text_of_all(session)
    scored = [row for row in session.rows if row["status"] == "scored"]
    assert 20 <= len(scored) < 60
    assert "EngineLost" in text
    assert "illegal memory access" in text
    assert re.search(rf"^test_gsm +1\.0000.* {len(scored)}/200 ", text, re.MULTILINE), text
    assert session.run_json()["exit_status"] == 16
    session.leaves_nothing()


def test_a_server_that_hangs_is_replaced(session: Session) -> None:
    """C80: a process that is alive and does not answer."""
    settings = "max_concurrency=4, health_interval_s=0.3, silence_s=2.0"
    session.write(suite(40), conftest=NO_GRACE + standin_conftest(SLOW, settings)).start()
    until(lambda: len(session.rows) > 5, "five episodes", 30)
    (pid,) = (pid for pid, command in session.processes("server.py").items() if "supervise" not in command)
    os.kill(pid, signal.SIGSTOP)
    assert session.wait() == 0
    assert "41 passed" in text_of_all(session)
    session.leaves_nothing()
