"""The test cluster: started by ``start-ray``, three nodes of four claimed GPUs, and ended with the session."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pytest_areal_eval.schedulers import processes
from pytest_areal_eval.schedulers.ray.scheduler import RayScheduler

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("FAKE_RAY_DIR", "/tmp/fake-ray"))
RAY = str(Path(sys.executable).with_name("ray"))
NODES = ("198.18.8.11", "198.18.8.12", "198.18.8.13")
GPUS = 4
START_LIMIT_S = 240.0
LEASE_S = 7.0
"""Long enough for a machine that is busy, short enough to be waited for."""


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed: pip install 'pytest-areal-eval[ray]'"
    if os.geteuid() != 0:
        return "the test cluster's nodes are namespaces, which need root"
    return ""


def start() -> str:
    """Have the cluster, all its nodes up; returns its address.  25 s from nothing, 0.1 s where it runs already."""
    done = subprocess.run(
        ["bash", str(HERE / "start-ray"), "--nodes", str(len(NODES)), "--gpus", str(GPUS), "--ray", RAY],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def stop() -> None:
    """End the cluster."""
    subprocess.run(["bash", str(HERE / "stop-ray")], stdin=subprocess.DEVNULL, timeout=60, check=True)


def cut_power(host: str) -> None:
    """Everything on a node dies at once."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((FOLDER / f"node{NODES.index(host) + 1}.pid").read_text()), signal.SIGKILL)


def cut_network(host: str) -> None:
    """A node goes on alone; not the head, whose network is this machine's.  :func:`start` connects it again."""
    subprocess.run(["ip", "link", "set", f"fr{NODES.index(host) + 1}", "down"], timeout=10, check=True)


def scheduler(folder: Path, address: str, **options: Any) -> RayScheduler:
    """A scheduler with its logs below ``folder``."""
    return RayScheduler(log_dir=folder / "logs", address=address, **options)


def owner_on(host: str, folder: Path, address: str, count: int, *argv: str) -> subprocess.Popen[bytes]:
    """A run of its own on a node: it starts instances, prints their nonces and sleeps."""
    outside = (FOLDER / f"node{NODES.index(host) + 1}.pid").read_text().strip()
    (inside,) = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
    program = str(HERE.parent / "programs" / "ray_owner.py")
    words = ["nsenter", "-t", inside, "--pid", "--mount", "--net", sys.executable, program]
    words += [str(folder), address, str(count), *argv]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def servers(nonce: str, program: str) -> list[int]:
    """The processes of an instance that run this program and are not its supervisors."""
    found = [pid for pid in processes.marked([nonce]) if "supervise" not in command(pid)]
    return [pid for pid in found if program in command(pid)]


def actor_of(nonce: str) -> int:
    """The process that the supervisors of an instance belong to."""
    marked = set(processes.marked([nonce]))
    (actor,) = {parent for pid in marked if (parent := parent_of(pid)) not in marked and "ray::" in command(parent)}
    return actor


def command(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent_of(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
