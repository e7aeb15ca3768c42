"""xdist's workers and the servers that their owner starts."""

from __future__ import annotations

import os
import signal
import sys
import time

from standin import engines
from support import standin_sessions
from support.sessions import Session
from support.standin_sessions import SUITE, shares
from support.waiting import until

SERVER = f"{sys.executable} {engines.__file__} vllm"
FIRST_AT_ONCE = f"""#!/bin/sh
mkdir "$0.first" 2>/dev/null || sleep 2
exec {SERVER} "$@"
"""


def test_workers_follow_servers_that_become_ready_late_and_that_are_started_again(session: Session) -> None:
    """After their second start both have other ports."""
    session.write(SUITE.format(rows=60))
    command = session.path / "engine.sh"
    command.write_text(FIRST_AT_ONCE)
    command.chmod(0o700)
    words = [word for word in standin_sessions.words("vllm", session, latency_s=0.3) if "engine-cmd" not in word]
    session.start("-n2", "--max-concurrency=4", "--backend=vllm:d2", f"--engine-cmd={command}", *words)
    until(lambda: len(shares(session)) == 2, "answers of both", 40)
    for pid, started in session.processes().items():
        if started.startswith(SERVER):
            os.kill(pid, signal.SIGKILL)
    killed_at = time.time()
    assert session.wait() == 0, session.output
    assert "62 passed" in session.output  # the gates are two
    again = {row["replica"] for row in session.rows if row["started_at"] > killed_at + 1.0}
    assert len(again) == 2
    kinds = [event["kind"] for event in session.run_json()["events"]]
    assert (kinds.count("lost"), kinds.count("ready")) == (2, 4)
    session.leaves_nothing()
