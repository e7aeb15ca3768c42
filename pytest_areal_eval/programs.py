"""A program that is asked for something and must answer in time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def ask(argv: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; with it ends whatever it started, since a wrapper's death leaves its program alive.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it gave no answer in time.
    """
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(argv, process.returncode, out, err)
