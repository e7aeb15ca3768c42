"""Where a run came from: code, versions, command line, machine.  Everything here is best effort and bounded in time.

Invariant: nothing is imported to learn its version, nothing raises, and no secret comes out.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from pytest_areal_eval.programs import ask
from pytest_areal_eval.redact import redact

TIMEOUT_S = 2.0

_PACKAGES = (
    "pytest-areal-eval",
    "pytest",
    "torch",
    "transformers",
    "tokenizers",
    "vllm",
    "sglang",
    "aiohttp",
    "math-verify",
    "datasets",
    "numpy",
    "scipy",
    "ray",
    "submitit",
)


class GitState(TypedDict):
    """``commit`` is None before the first one, ``branch`` on a detached head; untracked files do not make it dirty."""

    commit: str | None
    branch: str | None
    dirty: bool


def git_state(cwd: Path) -> GitState | None:
    """The checkout that ``cwd`` is in; None without git, outside a repository, or after two seconds."""
    output = _run(["git", "-C", str(cwd), "status", "--porcelain=v2", "--branch", "--untracked-files=no"])
    if output is None:
        return None
    lines = output.splitlines()
    head = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = head.get("branch.oid"), head.get("branch.head")
    return {
        "commit": None if commit == "(initial)" else commit,
        "branch": None if branch == "(detached)" else branch,
        "dirty": any(not line.startswith("#") for line in lines),
    }


def versions() -> dict[str, str]:
    """Python, platform, and those of the packages that matter which are installed."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def command_line(argv: Sequence[str]) -> list[str]:
    """The arguments with what looks like a secret masked."""
    return [str(argument) for argument in redact(list(argv))]


def machine() -> dict[str, Any]:
    """Host, usable cores, memory in GB, and the GPUs' names where ``nvidia-smi`` answers within two seconds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = _run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return {
        "host": socket.gethostname(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "gpus": gpus.splitlines() if gpus else [],
    }


def _run(argv: list[str]) -> str | None:
    env = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = ask(argv, TIMEOUT_S, env)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return done.stdout if done.returncode == 0 else None
