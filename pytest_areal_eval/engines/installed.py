"""Whether an engine is installed, and in which version: asked once of the interpreter that will run it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_areal_eval.engines.base import describe
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.programs import ask

OWN_PATH = {"PYTHONSAFEPATH": "1"}
"""For a program of an engine's environment: what lies where pytest was started (``queue.py``, a folder ``vllm``) is no
module of it.  An older Python than 3.11, which has no ``-P`` either, leaves it unread."""
LIMIT_S = 30.0
HINT = "Give a Python interpreter, ENV/bin/python."
ASK = """
import importlib.metadata as m, importlib.util as u, json, sys
found = {}
for name in sys.argv[2:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps([found, u.find_spec(sys.argv[1]) is not None, sys.version.split()[0]]))
"""


@dataclass(frozen=True)
class Wanted:
    """What must be installed.

    Attributes:
        module: what is imported.
        distributions: names under which it may be installed.
        minimum: the oldest version that works.
        why: what that version brought.
        how: the command that installs it.
    """

    module: str
    distributions: Sequence[str]
    minimum: str
    why: str
    how: str


def require(wanted: Wanted, python: str = sys.executable) -> str:
    """The installed version.

    Raises:
        ConfigError: no such interpreter, not installed there, or too old; says what was found and how to get it.
    """
    found, importable, python_version = _ask(wanted.module, tuple(wanted.distributions), python)
    version = next(iter(found.values()), None)
    where = "this environment" if python == sys.executable else python
    elsewhere = "or give --engine-python=PATH of an environment that has it"
    if not importable:
        raise ConfigError(
            f"--backend={wanted.module}: {wanted.module} is not installed in {where} (Python {python_version})",
            f"Install it ({wanted.how}), {elsewhere}, or use --backend=hf.",
        )
    if version is not None and release(version) < release(wanted.minimum):
        raise ConfigError(
            f"--backend={wanted.module}: {where} has {wanted.module} {version}, which is too old: {wanted.minimum} "
            f"is needed ({wanted.why})",
            f"Upgrade it ({wanted.how}), {elsewhere}.",
        )
    return version or "unknown"


def is_for_cpu(wanted: Wanted, python: str = sys.executable) -> bool:
    """Whether what is installed was built for CPUs: ``NAME-cpu``, or a version that ends in ``+cpu``.

    Raises:
        ConfigError: no such interpreter.
    """
    found, _, _ = _ask(wanted.module, tuple(wanted.distributions), python)
    return f"{wanted.module}-cpu" in found or any(version.endswith("cpu") for version in found.values())


def release(version: str) -> tuple[int, ...]:
    """``0.10.2rc1+cpu`` as (0, 10, 2), enough to compare releases."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


@functools.lru_cache
def _ask(module: str, distributions: tuple[str, ...], python: str) -> tuple[Mapping[str, str], bool, str]:
    """What the interpreter says, in the last line: a wrapper around it may greet first, and may take its time."""
    said = _run(python, ["-c", ASK, module, *distributions])
    try:
        found, importable, python_version = json.loads(said.splitlines()[-1])
        found = dict(found)
    except (IndexError, TypeError, ValueError) as error:
        answer = describe(said.strip()) or "nothing"
        raise ConfigError(f"--engine-python={python}: asked as a Python is, it answered {answer}", HINT) from error
    return found, importable, python_version


def _run(python: str, arguments: Sequence[str]) -> str:
    env = {**os.environ, **OWN_PATH}
    try:
        done = ask([python, *arguments], LIMIT_S, env)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"--engine-python={python}: no answer within {LIMIT_S:g} s", HINT) from error
    except OSError as error:
        raise ConfigError(f"--engine-python={python}: {error.strerror}", HINT) from error
    if done.returncode != 0:
        last = describe((done.stderr.strip().splitlines() or ["(it said nothing)"])[-1])
        raise ConfigError(f"--engine-python={python}: it ends with {done.returncode}: {last}", HINT)
    return done.stdout
