"""What pytest costs over a bare client on a real vLLM or SGLang, and how idle the GPU is meanwhile.

One server is started as the plugin starts it, and warmed up with all of the requests, since whoever comes second finds
their prompts in its prefix cache.  Then a bare aiohttp client and ``pytest evals/test_gsm8k.py`` send the same requests
(ids, seeds, limits) to it in turn, at the same concurrency.  pytest's time runs from its first request to the exit of
the process: grading, journal, reports and table included.  A last, short run lets pytest start a server by itself: from
the server being ready to the first request goes into the ratio too, and what pytest's start adds to the server's own
has a column of its own (``--rounds=0``: that run alone).  ``--turns`` lets several servers start at once and be
measured one after the other, as engines_gpu_all.sh does.

python benchmarks/engines_gpu.py --engine=vllm --engine-python=ENV/bin/python --data=gsm8k/test.jsonl --out=vllm.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import aiohttp
from machine import ROOT, header, pytest_command, run, table

from pytest_areal_eval.api import EpisodeStatus, GenerationHyperparameters, ModelRequest
from pytest_areal_eval.backends.choice import build_engine
from pytest_areal_eval.checkpoint import load_tokenizer
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.engines.base import Endpoint, Engine
from pytest_areal_eval.engines.wire import completion_body, generate_body
from pytest_areal_eval.options.settings import Settings
from pytest_areal_eval.schedulers.local import LocalScheduler

KEY = "ENGINE_BENCHMARK_KEY"
PATHS = {"vllm": "/v1/completions", "sglang": "/generate", "hf": "/generate"}
SAMPLE_EVERY_MS = 200
OWN_START_ROWS = 64
PASS_LIMIT_S = 600
START_LIMIT_S = 420
TURN_LIMIT_S = 1500


@dataclass(frozen=True)
class Sent:
    """One pass over all requests.

    Attributes:
        by: ``pytest`` or ``client``.
        wall_s: from the first request to the end.
        requests: how many were answered.
        output_tokens: tokens generated.
        gpu_busy: share of the samples' time in which the GPU ran a kernel; None without one.
        leave_s: from the last answer to the end.
        start_s: from the start of the process to the first request.
        cpu_s: user and system seconds of the process.
        graders_cpu_s: those of the processes that it started.
    """

    by: str
    wall_s: float
    requests: int
    output_tokens: int
    gpu_busy: float | None = None
    leave_s: float = 0.0
    start_s: float = 0.0
    cpu_s: float = 0.0
    graders_cpu_s: float = 0.0


@dataclass(frozen=True)
class Start:
    """A run that started its server.

    Attributes:
        server_s: from the server's process to its being ready.
        to_ready_s: from pytest's process to that.
        to_first_s: from the server being ready to the first request.
    """

    server_s: float
    to_ready_s: float
    to_first_s: float

    @property
    def added_s(self) -> float:
        """From pytest's process to the first request, beyond the server's own start."""
        return self.to_ready_s - self.server_s + self.to_first_s


@dataclass(frozen=True)
class Ran:
    """What one run of pytest left: its ``run.json``, its episodes' rows, its process's times (``time.time()``), and the
    user and system seconds of itself and of its graders.
    """

    run: dict[str, Any]
    episodes: list[dict[str, Any]]
    began: float
    ended: float
    cpu_s: float
    graders_cpu_s: float

    @property
    def first_at(self) -> float:
        """When the first request left."""
        return float(min(row["started_at"] for row in self.episodes))

    @property
    def ready_at(self) -> float:
        """When the engine was ready."""
        return float(min(event["at"] for event in self.run["events"] if event["kind"] == "ready"))


def main() -> None:
    """Measure one engine."""
    options = options_of()
    report = report_of(options)
    if options.rounds:
        with served(options) as (engine, endpoint):
            if options.turns is not None:
                await_turn(options.turns)
            report["info"] = asdict(engine.info)
            for sent in in_turn(options, engine, endpoint):
                report["passes"].append(asdict(sent))
                keep(options, report)
            if options.journal is not None:
                keep_journal(options, endpoint)
    if options.own_start:
        report["start"] = asdict(by_itself(options))
        keep(options, report)
    print(summary([report]))


def await_turn(turns: Path) -> None:
    """Say ``NAME.ready`` there and wait for ``NAME.go``."""
    turns.with_suffix(".ready").touch()
    given_up_at = time.monotonic() + TURN_LIMIT_S
    while not turns.with_suffix(".go").exists():
        if time.monotonic() > given_up_at:
            raise SystemExit(f"no {turns.with_suffix('.go')} within {TURN_LIMIT_S} s")
        time.sleep(0.2)


def report_of(options: argparse.Namespace) -> dict[str, Any]:
    """What one engine's numbers go into, as JSON has them."""
    return {
        "engine": options.engine,
        "model": str(options.model),
        "info": None,
        "start": None,
        "concurrency": options.concurrency,
        "passes": [],
        "machine": header(),
    }


def keep(options: argparse.Namespace, report: Mapping[str, Any]) -> None:
    """Write what is measured so far: whoever lends a GPU may take it back at any time."""
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def summary(reports: Sequence[Mapping[str, Any]]) -> str:
    """The table of ratios."""
    columns = ["engine", "checkpoint", "C", "requests", "pytest s", "client s", "ratio", "tok/s pytest", "tok/s client"]
    columns += ["GPU idle pytest", "GPU idle client", "ready to first request s", "server's start s", "pytest adds s"]
    rows = []
    for report in reports:
        passes, start = [Sent(**sent) for sent in report["passes"]], report["start"] and Start(**report["start"])
        times = (start.to_first_s, start.server_s, start.added_s) if start else ()
        row = [report["engine"], Path(report["model"]).name, report["concurrency"], *_ratio(passes, start)]
        rows.append([*row, *(f"{time_s:.1f}" for time_s in times), *(["-"] * (3 - len(times)))])
    told = [n for n in range(len(columns)) if any(row[n] != "-" for row in rows)]
    return table([columns[n] for n in told], [[row[n] for n in told] for row in rows])


def _ratio(passes: Sequence[Sent], start: Start | None) -> list[Any]:
    """From the number of requests to the GPU's idle share under the client."""
    ours, bare = ([sent for sent in passes if sent.by == by] for by in ("pytest", "client"))
    if not ours:
        return ["-"] * 8
    wall, bare_wall = mean(s.wall_s for s in ours), mean(s.wall_s for s in bare)
    wall += start.to_first_s if start else 0
    rates = [f"{sum(s.output_tokens for s in some) / sum(s.wall_s for s in some):,.0f}" for some in (ours, bare)]
    walls = [f"{wall:.1f}", f"{bare_wall:.1f}", f"{wall / bare_wall:.3f}"]
    return [ours[0].requests, *walls, *rates, _idle(ours), _idle(bare)]


def _idle(passes: Sequence[Sent]) -> str:
    busy = [sent.gpu_busy for sent in passes if sent.gpu_busy is not None]
    return f"{1 - mean(busy):.0%}" if busy else "-"


@contextlib.contextmanager
def served(options: argparse.Namespace) -> Iterator[tuple[Engine, Endpoint]]:
    """The engine and its one running replica."""
    given = _start_options(options) | {"engine-arg": options.engine_arg}
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Whoever waits for a turn shares the GPU: with locks of its own it finds it free.
        locks = Path(stack.enter_context(tempfile.TemporaryDirectory())) if options.turns is not None else None
        scheduler = stack.enter_context(contextlib.closing(LocalScheduler(log_dir=logs, lock_dir=locks)))
        settings = Settings(given={name: value for name, value in given.items() if value})
        engine, _ = build_engine(settings, str(options.model), scheduler)
        with RolloutController(
            engine,
            scheduler,
            settings=ControllerSettings(restarts=0, start_timeout_s=START_LIMIT_S),
            on_event=lambda event: print(event.text),
        ) as controller:
            controller.initialize()
            yield engine, controller.endpoints[0]


def _start_options(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "backend": options.engine,
        "engine-python": options.engine_python,
        "engine-cmd": options.engine_cmd,
    }


def in_turn(options: argparse.Namespace, engine: Engine, endpoint: Endpoint) -> Iterator[Sent]:
    """A bare client and pytest in turn, after a pass that fills the prefix cache."""
    _, journal = by_pytest(options, endpoint)
    for _ in range(options.rounds):
        yield by_client(options, engine, endpoint, journal)
        ours, journal = by_pytest(options, endpoint)
        yield ours


def attached(endpoint: Endpoint) -> tuple[str, ...]:
    """Options that lead pytest to a running server."""
    os.environ[KEY] = endpoint.token
    return f"--base-url={endpoint.base_url}", f"--api-key-env={KEY}"


def by_pytest(options: argparse.Namespace, endpoint: Endpoint) -> tuple[Sent, list[dict[str, Any]]]:
    """One pass of pytest, attached to the server; with its journal's rows."""
    with gpu_use() as use:
        ran = run_pytest(options, *attached(endpoint), *([f"--limit={options.limit}"] if options.limit else []))
        busy = use(ran.first_at, ran.ended)
    ends = sorted(row["at"] - ran.first_at for row in ran.episodes)
    wall_s, tokens = ran.ended - ran.first_at, sum(row["output_tokens"] for row in ran.episodes)
    print(Counter(row["status"] for row in ran.episodes), f"99 % are done after {ends[int(0.99 * len(ends))]:.1f} s,")
    print(f"all after {ends[-1]:.1f} s, pytest has ended after {wall_s:.1f} s", flush=True)
    start_s, leave_s = ran.first_at - ran.began, wall_s - ends[-1]
    sent = Sent("pytest", wall_s, len(ran.episodes), tokens, busy, leave_s, start_s, ran.cpu_s, ran.graders_cpu_s)
    return sent, ran.episodes


def by_itself(options: argparse.Namespace) -> Start:
    """A short run of pytest that starts its server."""
    given = [f"--{name}={value}" for name, value in _start_options(options).items() if value]
    ran = run_pytest(
        options, *given, *(f"--engine-arg={setting}" for setting in options.engine_arg), f"--limit={OWN_START_ROWS}"
    )
    texts = [event["text"] for event in ran.run["events"] if event["kind"] == "ready"]
    server_s = float(re.search(r"ready after ([\d.]+) s", texts[0])[1])  # type: ignore[index]
    return Start(server_s, ran.ready_at - ran.began, ran.first_at - ran.ready_at)


def run_pytest(options: argparse.Namespace, *arguments: str) -> Ran:
    """``pytest evals/test_gsm8k.py`` to its end."""
    with tempfile.TemporaryDirectory() as results:
        command = pytest_command(
            "-q",
            "evals/test_gsm8k.py",
            f"--dataset=test_gsm8k={options.data}",
            f"--model={options.model}",
            f"--n-samples={options.samples}",
            "--temperature=1",
            f"--max-new-tokens={options.max_new_tokens}",
            f"--max-concurrency={options.concurrency}",
            f"--results-dir={results}",
            *arguments,
        )
        began = time.time()
        done = run(command, expect=(0, 1))
        ended = time.time()
        folders = list(Path(results).glob("*/run.json"))
        if not folders:
            raise SystemExit(f"pytest left no run\n{done.output[-4000:]}")
        described = json.loads(folders[0].read_text())
        rows = [json.loads(line) for line in (folders[0].parent / "episodes.jsonl").read_text().splitlines()]
    episodes = [row for row in rows if row["kind"] == "episode"]
    failed = [row for row in episodes if EpisodeStatus(row["status"]).kind == "error"]
    if failed:
        raise SystemExit(f"{len(failed)} episodes failed, the first: {failed[0]['error']}")
    return Ran(described, episodes, began, ended, done.own_cpu_s, done.children_cpu_s)


def keep_journal(options: argparse.Namespace, endpoint: Endpoint) -> None:
    """Answer ``evals/test_arithmetic.py`` greedily and keep the journal, to compare engines item by item."""
    with tempfile.TemporaryDirectory() as results:
        where = (*attached(endpoint), f"--results-dir={results}")
        command = pytest_command("-q", "evals/test_arithmetic.py", f"--model={options.model}", *where)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        print("\n".join(done.stdout.splitlines()[-8:]), flush=True)
        journal = next(Path(results).glob("*/episodes.jsonl"))
        options.journal.write_text(journal.read_text())


def by_client(
    options: argparse.Namespace, engine: Engine, endpoint: Endpoint, journal: Sequence[Mapping[str, Any]]
) -> Sent:
    """One pass of the same requests by a bare client."""
    tokenizer = load_tokenizer(str(options.model))
    form = completion_body if options.engine == "vllm" else generate_body
    bodies = []
    for row in journal:
        ids = tokenizer(row["prompt"], add_special_tokens=False).input_ids
        gconfig = GenerationHyperparameters(
            temperature=1.0, max_new_tokens=options.max_new_tokens, seed=row["seed"]
        ).new_with_stop_and_pad_token_ids(tokenizer)
        bodies.append(form(ModelRequest(input_ids=ids, gconfig=gconfig, tokenizer=tokenizer), engine.info))
    with gpu_use() as use:
        started = time.time()
        sending = send(endpoint, PATHS[options.engine], bodies, options.concurrency)
        tokens = asyncio.run(asyncio.wait_for(sending, PASS_LIMIT_S))
        ended = time.time()
    return Sent("client", ended - started, len(bodies), tokens, use(started, ended))


async def send(endpoint: Endpoint, path: str, bodies: Sequence[Mapping[str, Any]], concurrency: int) -> int:
    """Send all with ``concurrency`` in flight; returns the tokens that came back."""
    waiting, tokens = iter(bodies), 0
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(endpoint.base_url, connector=connector, timeout=timeout, headers=headers) as http:

        async def work() -> None:
            nonlocal tokens
            for body in waiting:
                async with http.post(path, json=body) as reply:
                    reply.raise_for_status()
                    answer = json.loads(await reply.read())
                counts = answer.get("usage") or answer["meta_info"]
                tokens += counts["completion_tokens"]

        await asyncio.gather(*(work() for _ in range(concurrency)))
    return tokens


@contextlib.contextmanager
def gpu_use() -> Iterator[Any]:
    """Samples the first GPU; yields ``share(start, end)`` of the time in which it ran a kernel (None without a GPU)."""
    query = ["nvidia-smi", "--id=0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    query.append(f"-lms={SAMPLE_EVERY_MS}")
    try:
        process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        yield lambda start, end: None
        return
    began = time.time()

    def share(start: float, end: float) -> float | None:
        process.terminate()
        output, _ = process.communicate(timeout=10)
        samples = [float(line) / 100 for line in output.split()]
        step = (time.time() - began) / max(len(samples), 1)
        inside = [use for i, use in enumerate(samples) if start <= began + i * step <= end]
        return mean(inside) if inside else None

    try:
        yield share
    finally:
        process.terminate()


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What is to be measured; by default from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(PATHS), required=True)
    parser.add_argument("--engine-python", help="interpreter of the environment that has the engine")
    parser.add_argument("--engine-cmd", metavar="WORDS", help="what starts the server, up to its flags")
    parser.add_argument("--engine-arg", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--model", type=Path, default=ROOT / "models/tiny-math")
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's test split as JSONL")
    parser.add_argument("--limit", type=int, help="rows (default: all)")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--no-own-start", dest="own_start", action="store_false", help="leave out the run that starts its server"
    )
    parser.add_argument("--journal", type=Path, help="answer test_arithmetic greedily too, and keep its journal here")
    parser.add_argument(
        "--turns", type=Path, metavar="FOLDER/NAME", help="measure once FOLDER/NAME.go is there; say NAME.ready before"
    )
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
