"""The test cluster: started by ``start-slurm``, of whatever shape a test asks for, and ended with the session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

from pytest_areal_eval.schedulers.slurm import SlurmOptions, SlurmScheduler

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("FAKE_SLURM_DIR", "/var/lib/fake-slurm"))
SHARED = FOLDER / "shared"
START_LIMIT_S = 240.0
"""apt may have to install Slurm first."""
LEASE_S = 4.0


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "the test cluster's nodes are namespaces, which need root"
    if shutil.which("slurmctld") is None and shutil.which("apt-get") is None:
        return "no slurmctld, and no apt-get to install it with"
    return ""


def start(*options: str) -> None:
    """Have a cluster of this shape; 0.3 s where it runs already, 3 s where another one has to go first."""
    done = subprocess.run(
        ["bash", str(HERE / "start-slurm"), *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr


def stop() -> None:
    """End the cluster."""
    subprocess.run(["bash", str(HERE / "stop-slurm")], stdin=subprocess.DEVNULL, timeout=60, check=True)


def scheduler(lease_s: float = 120.0, **options: object) -> SlurmScheduler:
    """A scheduler whose files lie in a folder of its own that all nodes see."""
    return SlurmScheduler(shared_dir=SHARED / uuid.uuid4().hex[:8], options=SlurmOptions(**options), lease_s=lease_s)  # type: ignore[arg-type]


def slurm(*command: str) -> str:
    """One of Slurm's programs."""
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def node(program: str, *arguments: str) -> None:
    """``kill-node``, ``start-node`` or ``cut-node``."""
    subprocess.run([str(FOLDER / "bin" / program), *arguments], timeout=10, check=True)


def jobs() -> list[str]:
    """The ids of all jobs that wait or run."""
    return slurm("squeue", "-h", "-o", "%i").split()


def owner(count: int, *argv: str, lease_s: float = LEASE_S, gpus: int = 1) -> subprocess.Popen[bytes]:
    """A run of its own that starts instances, prints their nonces and sleeps."""
    program = str(HERE.parent / "programs" / "slurm_owner.py")
    words = [sys.executable, program, str(SHARED / uuid.uuid4().hex[:8]), str(count), str(gpus), str(lease_s), *argv]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
