"""The engines on a CPU: tokens per second, what pytest costs over a bare client, and whether their answers are equal.

The embedded engine, and vLLM and SGLang where ``make engines`` has built them, each as the plugin starts it, with the
shipped checkpoint in float32:

- tokens per second, 64 greedy tokens for each request, against plain ``transformers`` (length-sorted, left-padded
  batches as large as the others' concurrency);
- pytest over a bare client, and what pytest adds to a server's own start (see ``engines_gpu.py``);
- texts and rewards of greedy ``evals/test_arithmetic.py``, item by item, against the embedded engine.

    python benchmarks/engines_cpu.py --engines ~/.cache/pytest-areal-eval/engines
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import engines_gpu as gpu
import torch
from hf_engine import FIXED_TOKENS, Plain, Prompts
from machine import ROOT, header, table

from pytest_areal_eval.api import GenerationHyperparameters, ModelRequest
from pytest_areal_eval.engines import sglang, vllm
from pytest_areal_eval.engines.base import Endpoint, Engine
from pytest_areal_eval.engines.installed import require
from pytest_areal_eval.engines.wire import completion_body, generate_body

BUILT = Path.home() / ".cache/pytest-areal-eval/engines"
DATA = ROOT / "evals/data/arithmetic.jsonl"
MODEL = ROOT / "models/tiny-math"
REQUESTS = {1: 8, 8: 64, 32: 128, 64: 192}
"""How many requests are sent at each concurrency."""
COMPARED = ("hf", "vllm")
"""Whose speed is measured; SGLang has no CPU kernels from PyPI and generates by its fallbacks."""
WANTED = {"vllm": vllm.WANTED, "sglang": sglang.WANTED}
EXTRA = {"sglang": ["device=cpu"]}


@dataclass
class Measured:
    """One engine's results.

    Attributes:
        speeds: output tokens per second by concurrency.
        report: what ``engines_gpu.py`` measures; None where it was left out.
        answers: text and reward by item.
    """

    speeds: dict[int, float] = field(default_factory=dict)
    report: dict[str, Any] | None = None
    answers: dict[str, tuple[str, float]] = field(default_factory=dict)


def main() -> None:
    """Measure and print three tables."""
    options = _options()
    torch.set_num_threads(1)
    plain = Plain(str(MODEL))
    prompts = plain.prompts(DATA, None)
    built = [kind for kind in WANTED if python_of(kind, options).exists()]
    versions = [f"{kind} {require(WANTED[kind], str(python_of(kind, options)))}" for kind in built]
    print(", ".join([header("torch", "transformers"), *versions]), end="\n\n", flush=True)
    kinds = ["hf", *built]
    with contextlib.redirect_stdout(sys.stderr):  # what happens meanwhile
        found = {kind: measure(kind, prompts, options) for kind in kinds}
    speeds = {"transformers": plain_speeds(plain, prompts)} | {
        kind: found[kind].speeds for kind in COMPARED if kind in found
    }
    print(table(["in flight", *(f"{name} tok/s" for name in speeds)], speed_rows(speeds)), end="\n\n")
    print(gpu.summary([m.report for m in found.values() if m.report is not None]), end="\n\n")
    print(table(["engine", "items", "same text", "same reward", "differ"], equality_rows(found)))


def python_of(kind: str, options: argparse.Namespace) -> Path:
    """The interpreter that has an engine."""
    folder: Path = options.engines
    return folder / kind / "bin/python"


def measure(kind: str, prompts: Prompts, options: argparse.Namespace) -> Measured:
    """Everything of one engine, on one server."""
    found = Measured()
    with tempfile.TemporaryDirectory() as folder:
        given = _given(kind, Path(folder), options)
        with gpu.served(given) as (engine, endpoint):
            gpu.keep_journal(given, endpoint)  # which warms it up too
            found.answers = answers(given.journal)
            if kind in COMPARED:
                found.speeds = {n: speed(engine, endpoint, prompts, n) for n in REQUESTS}
                passes = [asdict(sent) for sent in gpu.in_turn(given, engine, endpoint)]
        if kind in COMPARED:
            start = asdict(gpu.by_itself(given))
            found.report = gpu.report_of(given) | {"passes": passes, "start": start}
    return found


def _given(kind: str, folder: Path, options: argparse.Namespace) -> argparse.Namespace:
    python = [] if kind == "hf" else [f"--engine-python={python_of(kind, options)}"]
    counts = [f"--{name}={getattr(options, name)}" for name in ("samples", "concurrency", "rounds")]
    extra = [f"--engine-arg={setting}" for setting in EXTRA.get(kind, [])]
    where = [f"--model={MODEL}", f"--data={DATA}", f"--journal={folder / 'journal.jsonl'}"]
    return gpu.options_of([f"--engine={kind}", *python, *counts, *extra, *where])


def speed(engine: Engine, endpoint: Endpoint, prompts: Prompts, concurrency: int) -> float:
    """Tokens per second of a server."""
    form = completion_body if engine.name == "vllm" else generate_body
    gconfig = GenerationHyperparameters(greedy=True, max_new_tokens=FIXED_TOKENS, ignore_eos=True)
    bodies = [
        form(ModelRequest(input_ids=ids, gconfig=gconfig), engine.info) for ids in prompts[: REQUESTS[concurrency]]
    ]
    started = time.monotonic()
    tokens = asyncio.run(gpu.send(endpoint, gpu.PATHS[engine.name], bodies, concurrency))
    return tokens / (time.monotonic() - started)


def plain_speeds(plain: Plain, prompts: Prompts) -> dict[int, float]:
    """Tokens per second of ``model.generate``."""
    plain.run(prompts[:8], 8, fixed=True)
    return {n: plain.run(prompts[:count], n, fixed=True).speed for n, count in REQUESTS.items()}


def speed_rows(speeds: Mapping[str, Mapping[int, float]]) -> list[list[str]]:
    """A row for each concurrency."""
    return [[str(n), *(f"{some[n]:,.0f}" for some in speeds.values())] for n in REQUESTS]


def answers(journal: Path) -> dict[str, tuple[str, float]]:
    """Text and reward of each item in a journal."""
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    return {row["item_id"]: (row["completion"], row["reward"]) for row in rows if row["kind"] == "episode"}


def equality_rows(found: Mapping[str, Measured]) -> list[list[Any]]:
    """What each engine answered otherwise than the embedded one."""
    ours, rows = found["hf"].answers, []
    for kind, measured in found.items():
        if kind == "hf":
            continue
        texts = [item for item, (text, _) in ours.items() if measured.answers[item][0] == text]
        rewards = [item for item, (_, reward) in ours.items() if measured.answers[item][1] == reward]
        differ = ", ".join(sorted(set(ours) - set(texts))[:8]) or "-"
        share = (f"{len(texts) / len(ours):.1%}", f"{len(rewards) / len(ours):.1%}")
        rows.append([kind, len(ours), *share, differ])
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=Path, default=BUILT, metavar="DIR", help="where make engines put them")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    main()
