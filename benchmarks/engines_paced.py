"""What pytest costs over a bare client where the server is as fast as a real one with a tiny model, without a GPU.

The stand-ins of vLLM and SGLang (``tests/standin``) answer with 64 to 256 tokens and take so long for each token that
256 requests at once make 340 a second, as vLLM on an H200 does with a checkpoint of 4 million parameters: the most that
one replica asks of pytest.  A stand-in works on any number of requests at once, so every millisecond for which a client
leaves a place empty shows.  The server has core 0; pytest with its graders and the bare client, in turn, the others.
What is measured is told in ``engines_gpu.py``.

    python benchmarks/engines_paced.py              # 6 minutes
    python benchmarks/engines_paced.py --engine=vllm --rows=300 --rounds=1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import mean

import engines_gpu as gpu
from machine import ROOT, header, table

from pytest_areal_eval.checkpoint import load_tokenizer

MODEL = ROOT / "models/tiny-math"
STANDIN = ROOT / "tests/standin/engines.py"
KINDS = ("vllm", "sglang")
SERVER_CORE = 0
LENGTHS = range(64, 257, 2)
"""The answers' tokens."""
MEAN_S = 0.75
"""Time of the mean answer."""
WORDS = (
    "Ada",
    "has",
    "12",
    "apples",
    "and",
    "buys",
    "seven",
    "more",
    "of",
    "them",
    "for",
    "3",
    "dollars",
    "each",
    ",",
    "so",
)
ANSWERED = " The answer is \\boxed{17}."


def main() -> None:
    """Measure and print a table."""
    options = _options()
    others = os.sched_getaffinity(0) - {SERVER_CORE}
    if others:
        os.sched_setaffinity(0, others)
    print(header("aiohttp", "transformers"), end="\n\n", flush=True)
    rows = []
    for kind in options.engine or KINDS:
        with contextlib.redirect_stdout(sys.stderr):  # what happens meanwhile
            passes = measure(kind, options)
        rows.append([kind, options.concurrency, passes[0].requests, *row_of(passes)])
    columns = ["engine", "C", "episodes", "pytest s", "client s", "ratio", "more s in flight", "last answer to exit s"]
    print(table([*columns, "to the first request s", "pytest CPU ms an episode", "graders CPU ms"], rows))


def measure(kind: str, options: argparse.Namespace) -> list[gpu.Sent]:
    """The passes of pytest and of the client."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "rows.jsonl")
        data.write_text("\n".join(map(json.dumps, questions(options.rows))))
        command = f"taskset -c {SERVER_CORE} {sys.executable} {STANDIN} {kind}"
        counts = [f"--{name}={getattr(options, name)}" for name in ("samples", "concurrency", "rounds")]
        tokens = f"--max-new-tokens={LENGTHS[-1]}"
        given = gpu.options_of([f"--engine={kind}", f"--engine-cmd={command}", f"--data={data}", *counts, tokens])
        os.environ["STANDIN"] = json.dumps({"token_s": MEAN_S / mean(LENGTHS), "answers": answers()})
        with gpu.served(given) as (engine, endpoint):
            return list(gpu.in_turn(given, engine, endpoint))


def questions(rows: int) -> list[dict[str, str]]:
    """As long as GSM8K's, none like another."""
    rng = Random(0)
    texts = (" ".join([f"{n}.", *rng.choices(WORDS, k=rng.randint(25, 75))]) for n in range(rows))
    return [{"question": text, "answer": "#### 17"} for text in texts]


def answers() -> list[str]:
    """A text of each of the lengths, in an order that no pass of a multiple of 8 requests repeats."""
    tokenizer, rng = load_tokenizer(str(MODEL)), Random(0)
    end = len(tokenizer.encode(ANSWERED, add_special_tokens=False)) + 1
    made = []
    for length in LENGTHS:
        ids = tokenizer.encode(" ".join(rng.choices(WORDS, k=length)), add_special_tokens=False)
        made.append(tokenizer.decode(ids[: length - end]) + ANSWERED)
    rng.shuffle(made)
    return made


def row_of(passes: Sequence[gpu.Sent]) -> list[str]:
    """The means over all passes of each."""
    ours, bare = ([sent for sent in passes if sent.by == by] for by in ("pytest", "client"))
    wall_s, bare_s, leave_s = (
        mean(times) for times in ([s.wall_s for s in ours], [s.wall_s for s in bare], [s.leave_s for s in ours])
    )
    costs_ms = [mean(getattr(s, name) / s.requests * 1e3 for s in ours) for name in ("cpu_s", "graders_cpu_s")]
    seconds = (wall_s - leave_s - bare_s, leave_s, mean(s.start_s for s in ours), *costs_ms)
    return [f"{wall_s:.2f}", f"{bare_s:.2f}", f"**{wall_s / bare_s:.3f}**", *(f"{number:.2f}" for number in seconds)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=KINDS, action="append", help="default: both")
    parser.add_argument("--rows", type=int, default=1319)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
