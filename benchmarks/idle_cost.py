"""What the plugin costs where nothing is evaluated: ``pytest --help``, an unrelated suite, and collecting 10,000 rows.

CPU seconds are compared, with and without the plugin in turn, because they hardly depend on what else runs.

    python benchmarks/idle_cost.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from machine import header, pytest_command, run, table

HEAVY = ("torch", "transformers", "aiohttp", "numpy", "scipy", "datasets", "math_verify", "rich")
ROWS = 10_000
UNRELATED = """
import sys

def test_one():
    pass

def test_what_is_loaded():
    loaded = [name for name in {heavy} if name in sys.modules]
    ours = [name for name in sys.modules if name.startswith("pytest_areal_eval")]
    print("LOADED", " ".join(loaded) or "none", "; ours:", len(ours))
"""
EVALUATION = """
from pytest_areal_eval import evaluation

def grade(prompt, completions, prompt_ids, completion_ids, answer, **columns):
    return 1.0

@evaluation(dataset="rows.jsonl", reward_fn=grade)
def test_rows(rollout):
    pass
"""


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(header(), end="\n\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_unrelated.py").write_text(UNRELATED.format(heavy=HEAVY))
        cases = {"pytest --help": ["--help"], "an unrelated suite": ["-q", "test_unrelated.py"]}
        lines = [difference(name, arguments, folder, rounds) for name, arguments in cases.items()]
        print(table(("command", "without the plugin ms", "with it ms", "more ms"), lines), end="\n\n")
        loaded = run(pytest_command("-q", "-s", "test_unrelated.py"), cwd=folder).output
        said = next(line for line in loaded.splitlines() if "LOADED" in line).partition("LOADED ")[2]
        print(f"Of {', '.join(HEAVY)} the unrelated suite loads: {said} modules.", end="\n\n")
        print(table(("command", "rows", "wall s", "CPU s"), [collect(folder)]))


def difference(name: str, arguments: Sequence[str], folder: Path, rounds: int) -> tuple[object, ...]:
    """Medians of CPU milliseconds, and of the rounds' differences."""
    without, with_it = [], []
    for _ in range(rounds):
        without.append(run(pytest_command("-p", "no:areal_eval", *arguments), cwd=folder).cpu_s * 1e3)
        with_it.append(run(pytest_command(*arguments), cwd=folder).cpu_s * 1e3)
    more = statistics.median(b - a for a, b in zip(without, with_it, strict=True))
    return name, f"{statistics.median(without):.0f}", f"{statistics.median(with_it):.0f}", f"**{more:.0f}**"


def collect(folder: Path) -> tuple[object, ...]:
    """``--collect-only`` of an evaluation with many rows."""
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(ROWS)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "test_rows.py").write_text(EVALUATION)
    ended = [run(pytest_command("--collect-only", "-q", "test_rows.py"), cwd=folder) for _ in range(3)]
    wall, cpu = (statistics.median(getattr(e, name) for e in ended) for name in ("wall_s", "cpu_s"))
    return "pytest --collect-only -q", f"{ROWS:,}", f"**{wall:.2f}**", f"{cpu:.2f}"


if __name__ == "__main__":
    main()
