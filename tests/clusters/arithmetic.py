"""The shipped evaluation, as a person runs it: in a process of its own, with the shipped checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.plugins import without

ROOT = Path(__file__).parents[2]
ITEMS = 48
SOME = f"--limit={ITEMS}"
"""Each session draws the same ones."""


def evaluate(*options: str, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    """Run it, greedily and without this run's plugins' caches."""
    words = [sys.executable, "-m", "pytest", "evals/test_arithmetic.py", "--model=models/tiny-math", "-q"]
    words += ["-p", "no:cacheprovider", *without().split(), "--greedy", *options]
    environment = {name: value for name, value in env.items() if name != "CI"}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)


def rewards(folder: Path) -> dict[str, float]:
    """Of each item, from the only run below a folder."""
    (journal,) = {path.resolve() for path in folder.glob("*/episodes.jsonl")}  # "latest" leads there too
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    return {row["item_id"]: row["reward"] for row in rows if "reward" in row}
