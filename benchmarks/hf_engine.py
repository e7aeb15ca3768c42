"""The embedded server against plain ``transformers.generate``: tokens per second, CPU seconds, equal greedy answers.

Both sides get the same prompts.  The plain side is ideal: in process, no HTTP, prompts sorted by length, left-padded,
batches as large as the server's concurrency.  The sides take turns within a round, and a figure is the median of the
rounds' ratios.

    python benchmarks/hf_engine.py --model models/tiny-math evals/data/arithmetic.jsonl evals/data/arithmetic-hard.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import torch
import transformers
from rich.progress import track

Prompts = list[list[int]]
START_TIMEOUT_S = 120.0
EOS_LIMIT = 256
FIXED_TOKENS = 64


class Run(NamedTuple):
    """One pass over the prompts: the answers, and what they cost."""

    answers: list[list[int]]
    wall_s: float
    cpu_s: float

    @property
    def speed(self) -> float:
        """Output tokens per second."""
        return sum(map(len, self.answers)) / self.wall_s


class Plain:
    """``model.generate`` over length-sorted, left-padded batches."""

    def __init__(self, path: str) -> None:
        transformers.utils.logging.disable_progress_bar()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        eos = self.model.generation_config.eos_token_id
        self.eos = {*(eos if isinstance(eos, list) else [eos]), self.tokenizer.eos_token_id}

    def prompts(self, path: Path, limit: int | None) -> Prompts:
        """The data's questions through the chat template."""
        rows = [json.loads(line) for line in path.read_text().splitlines()][:limit]
        texts = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": row["question"]}], add_generation_prompt=True, tokenize=False
            )
            for row in rows
        ]
        return [list(self.tokenizer(text, add_special_tokens=False).input_ids) for text in texts]

    def run(self, prompts: Prompts, batch: int, fixed: bool) -> Run:
        """Generate greedily, to the end token or exactly ``FIXED_TOKENS``."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: list[list[int]] = [[] for _ in prompts]
        wall, cpu = time.perf_counter(), time.process_time()
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            for i, answer in zip(chosen, self._batch([prompts[i] for i in chosen], fixed), strict=True):
                answers[i] = answer
        return Run(answers, time.perf_counter() - wall, time.process_time() - cpu)

    def _batch(self, prompts: Prompts, fixed: bool) -> list[list[int]]:
        size = max(map(len, prompts))
        pads = [size - len(p) for p in prompts]
        ids = torch.tensor([[0] * pad + p for pad, p in zip(pads, prompts, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * len(p) for pad, p in zip(pads, prompts, strict=True)])
        limits = {"min_new_tokens": FIXED_TOKENS, "max_new_tokens": FIXED_TOKENS} if fixed else {}
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, **({"max_new_tokens": EOS_LIMIT} | limits)
            )
        return [self._to_end(row) if not fixed else row for row in out[:, size:].tolist()]

    def _to_end(self, answer: list[int]) -> list[int]:
        end = next((k for k, token in enumerate(answer) if token in self.eos), len(answer))
        return answer[: end + 1]


class Server:
    """The embedded server in a process of its own."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.stat = url, Path(f"/proc/{pid}/stat")

    def run(self, prompts: Prompts, concurrency: int, fixed: bool) -> Run:
        """The same requests over HTTP, ``concurrency`` of them in flight."""
        wall, cpu = time.perf_counter(), self._cpu_s()
        answers = asyncio.run(self._all(prompts, concurrency, fixed))
        return Run(answers, time.perf_counter() - wall, self._cpu_s() - cpu)

    def _cpu_s(self) -> float:
        user, system = self.stat.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    async def _all(self, prompts: Prompts, concurrency: int, fixed: bool) -> list[list[int]]:
        limits = {"max_new_tokens": FIXED_TOKENS, "ignore_eos": True} if fixed else {"max_new_tokens": EOS_LIMIT}
        free = asyncio.Semaphore(concurrency)
        async with aiohttp.ClientSession() as http:

            async def one(ids: list[int]) -> list[int]:
                body = {"input_ids": ids, "sampling_params": {"temperature": 0.0, **limits}}
                async with free, http.post(f"{self.url}/generate", json=body) as response:
                    response.raise_for_status()
                    answer: list[int] = (await response.json())["output_ids"]
                    return answer

            return list(await asyncio.gather(*map(one, prompts)))


@contextmanager
def serving(path: str, rows: int, threads: int) -> Iterator[Server]:
    """Start the server, wait until it is ready, and end it."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    argv = [sys.executable, "-m", "pytest_areal_eval.engines.hf_server", "--model", path, "--port", str(port)]
    argv += ["--max-batch", str(rows), "--threads", str(threads), "--dtype", "float32"]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_TIMEOUT_S
        while not asyncio.run(_healthy(url)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not become ready: {' '.join(argv)}")
            time.sleep(0.2)
        yield Server(url, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


async def _healthy(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/health") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def compare(plain: Plain, path: str, prompts: Prompts, concurrency: int, fixed: bool, options: Any) -> str:
    """One row of the table."""
    counts = {1: min(len(prompts), 40), 8: min(len(prompts), 120)}
    chosen = prompts[: counts.get(concurrency, len(prompts))]
    ours: list[Run] = []
    theirs: list[Run] = []
    with serving(path, concurrency, options.threads) as server:
        server.run(chosen[:8], concurrency, fixed)
        for number in range(options.rounds):
            sides: list[Callable[[], None]] = [
                lambda: ours.append(server.run(chosen, concurrency, fixed)),
                lambda: theirs.append(plain.run(chosen, concurrency, fixed)),
            ]
            for side in sides if number % 2 else reversed(sides):
                side()
    speed = statistics.median(a.speed / b.speed for a, b in zip(ours, theirs, strict=True))
    cpu = statistics.median(a.cpu_s / b.cpu_s for a, b in zip(ours, theirs, strict=True))
    mine, plainly = (statistics.median(r.speed for r in side) for side in (ours, theirs))
    kind = f"{FIXED_TOKENS} tokens each" if fixed else "to the end token"
    return f"| {concurrency} | {kind} | {mine:,.0f} | {plainly:,.0f} | {speed:.2f} | {cpu:.2f} |"


def check_equal(plain: Plain, path: str, data: Sequence[Path], options: Any) -> list[str]:
    """Greedy answers of the server, batched, against ``generate`` one prompt at a time."""
    lines = []
    with serving(path, 32, options.threads) as server:
        for file in data:
            prompts = plain.prompts(file, options.limit)
            expected = [
                plain.run([p], 1, fixed=False).answers[0]
                for p in track(prompts, file.name, transient=True, disable=not sys.stderr.isatty())
            ]
            got = server.run(prompts, 32, fixed=False).answers
            same = sum(a == b for a, b in zip(got, expected, strict=True))
            lines.append(f"{file.name}: {same} of {len(prompts)} greedy answers equal to `generate`, token for token")
    return lines


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path, help="JSONL files with a `question` in each row")
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="rows of each file")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a forward, on both sides")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain = Plain(options.model)
    prompts = plain.prompts(options.data[0], options.limit)
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, ", end="")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, threads {options.threads}, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}\n")
    print("| in flight | answers | server tok/s | generate tok/s | speed ratio | CPU ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for concurrency in (1, 8, 32):
        for fixed in (False, True):
            print(compare(plain, options.model, prompts, concurrency, fixed, options), flush=True)
    print()
    for line in check_equal(plain, options.model, options.data, options):
        print(line)


if __name__ == "__main__":
    main()
