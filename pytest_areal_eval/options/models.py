"""Several checkpoints: the folders that ``--model`` means, their short names, and the training steps in those."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from pytest_areal_eval.errors import ConfigError

_STEPS = tuple(
    re.compile(rf"(?<![a-z]){word}[-_=]?(\d+)", re.IGNORECASE)
    for word in (r"(?:.*global[-_]?)step", r"(?:step|checkpoint|ckpt|iter|iteration)s?", r"epoch")
)
"""What a step follows, the surest first: AReaL's folders are named ``epoch0epochstep9globalstep9``."""
_DIGITS = re.compile(r"(\d+)")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._+=-]")
"""What pytest would escape in a test's id, or what means something there."""


def expand(models: Sequence[str]) -> list[str]:
    """Each ``--model`` as it is, and a pattern such as ``run/step-*`` as the folders that match it, by their numbers.

    Raises:
        ConfigError: a pattern matches no folder.
    """
    return [found for model in models for found in ([model] if _is_plain(model) else _matches(model))]


def short_names(models: Sequence[str]) -> list[str]:
    """Short, distinct names of several checkpoints: the last part of each path, more of it where two agree."""
    parts = [[p for p in str(Path(m).absolute() if Path(m).exists() else m).split("/") if p] for m in models]
    names: list[str] = []
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = [_NOT_PLAIN.sub("-", "-".join(part[-depth:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{number}-{name}" for number, name in enumerate(names)]  # paths that the settings let pass are distinct


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A key that sorts texts by the numbers in them: ``step-9`` before ``step-10``."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(text)]


def step_of(name: str) -> int | None:
    """The training step in a checkpoint's name: 200 for ``checkpoint-200``, 99 for ``globalstep99``; None without."""
    if name.isdecimal():
        return int(name)
    found = (pattern.findall(name) for pattern in _STEPS)
    return next((int(steps[-1]) for steps in found if steps), None)


def _is_plain(model: str) -> bool:
    return not glob.has_magic(model) or os.path.exists(model)


def _matches(pattern: str) -> list[str]:
    """Folders, each once: ``latest`` is often a link to one of the others."""
    found: dict[str, str] = {}
    for path in sorted(glob.glob(os.path.expanduser(pattern)), key=lambda path: (os.path.islink(path), natural(path))):
        if os.path.isdir(path):
            found.setdefault(os.path.realpath(path), path)
    if not found:
        raise ConfigError(f"--model={pattern}: no folder matches", f"Look with: ls -d {pattern}")
    return sorted(found.values(), key=natural)
