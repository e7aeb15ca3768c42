"""What an episode costs beside the model: CPU, time to the first request, places kept busy, time to leave, memory.

A fake server on core 0 answers after a fixed latency; pytest, pinned with its graders to core 1, attaches to it and
evaluates rows whose reward costs nothing, journal on.  Costs per sample are slopes over N, so what a run costs once
does not count.  An episode in flight is one request at the server, seen from there.

    python benchmarks/overhead.py            # 10 to 15 minutes
    python benchmarks/overhead.py --quick    # 3 minutes, noisier
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import ROOT, header, pytest_command, run, table

SUITE = Path(__file__).with_name("overhead_suite")
SERVER_CORE, CLIENT_CORE = 0, 1
FORMS = {"RLVR, tokenizer": "test_rlvr", "async test": "test_async"}


@dataclass(frozen=True)
class Measured:
    """One pytest run.

    Attributes:
        rows: items evaluated.
        cpu_s: user and system seconds of pytest's process.
        graders_cpu_s: those of the processes that it started.
        wall_s: from exec to exit.
        first_s: from exec to the first request (bare pytest: to the first test's body).
        leave_s: from the last response to the exit.
        rss_kb: pytest's peak.
        peak: most requests in flight.
        mean: mean in flight over the middle 80 %.
        server_busy: share of its core that the server used.
    """

    rows: int
    cpu_s: float
    graders_cpu_s: float
    wall_s: float
    first_s: float
    leave_s: float
    rss_kb: int
    peak: int = 0
    mean: float = 0.0
    server_busy: float = 0.0


class Bench:
    """A fake server's address and a folder for what the runs write."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def evaluate(self, form: str, rows: int, in_flight: int) -> Measured:
        """One run of an evaluation."""
        test, tokenizer = FORMS[form], ROOT / "models" / "tiny-math"
        arguments = [
            f"--server={self.url}",
            f"--in-flight={in_flight}",
            f"--results-dir={self.folder / 'results'}",
        ]
        arguments.append(f"--dataset={test}={self._data(rows)}")
        if form != "async test":
            arguments.append(f"--tokenizer={tokenizer}")
        self._ask("/reset")
        return self._run(SUITE / f"{test}.py", rows, arguments)

    def bare(self, rows: int) -> Measured:
        """The same number of tests without the plugin."""
        self._ask("/reset")
        return self._run(SUITE / "test_bare.py", rows, ["-p", "no:areal_eval", f"--rows={rows}"])

    def _run(self, file: Path, rows: int, arguments: Sequence[str]) -> Measured:
        costs_path = self.folder / "costs.json"
        command = pytest_command("-q", "--rootdir", SUITE, file, f"--costs={costs_path}", *arguments)
        ended = run(command, cwd=self.folder, core=CLIENT_CORE)
        costs, seen = json.loads(costs_path.read_text()), self._ask("/stat")
        if seen["n"] and seen["n"] != rows:
            raise SystemExit(f"{rows} rows, but the server saw {seen['n']:.0f} requests\n{ended.output[-2000:]}")
        return Measured(
            rows=rows,
            cpu_s=ended.own_cpu_s,
            graders_cpu_s=ended.children_cpu_s,
            wall_s=ended.wall_s,
            first_s=seen.get("first", costs["began"]) - ended.started_at,
            leave_s=ended.ended_at - seen.get("last", ended.ended_at),
            rss_kb=costs["rss_kb"],
            peak=int(seen.get("peak", 0)),
            mean=seen.get("mean", 0.0),
            server_busy=seen.get("busy", 0.0),
        )

    def _data(self, rows: int) -> Path:
        path = self.folder / f"rows-{rows}.jsonl"
        if not path.exists():
            question = "Ada has 12 apples and buys {} more at the market. How many apples does Ada have now?"
            lines = [json.dumps({"question": question.format(n), "answer": "17"}) for n in range(rows)]
            path.write_text("\n".join(lines))
        return path

    def _ask(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            answer: dict[str, Any] = json.load(response)
            return answer


@contextmanager
def bench(latency_ms: float) -> Iterator[Bench]:
    """A fake server of its own on its core, ended at the end."""
    argv = [
        "taskset",
        "-c",
        str(SERVER_CORE),
        sys.executable,
        str(Path(__file__).with_name("fake_server.py")),
    ]
    server = subprocess.Popen([*argv, f"--latency-ms={latency_ms}"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Bench(server.stdout.readline().strip(), Path(folder))
    finally:
        server.terminate()
        server.wait(10)


def slope(runs: Sequence[Measured], value: str) -> float:
    """Least-squares slope of an attribute over the rows."""
    return statistics.linear_regression([r.rows for r in runs], [getattr(r, value) for r in runs]).slope


def cost_table(at: Bench, counts: Sequence[int], rounds: int) -> str:
    """CPU and memory of a sample, by slope."""
    bare = [at.bare(rows) for _ in range(rounds) for rows in counts]
    cpu_ms, rss_kb = f"{slope(bare, 'cpu_s') * 1e3:.2f}", f"{slope(bare, 'rss_kb'):.1f}"
    lines: list[tuple[object, ...]] = [("bare pytest", "-", cpu_ms, "-", "-", rss_kb, "-", "-")]
    for form in FORMS:
        for in_flight in (64, 256):
            runs = [at.evaluate(form, rows, in_flight) for _ in range(rounds) for rows in counts]
            own, graders = (slope(runs, name) * 1e3 for name in ("cpu_s", "graders_cpu_s"))
            longest = [r for r in runs if r.rows == counts[-1]]
            mean, busy = (statistics.median(getattr(r, name) for r in longest) for name in ("mean", "server_busy"))
            lines.append(
                (
                    form,
                    in_flight,
                    f"{own:.2f}",
                    f"{graders:.2f}",
                    f"**{own + graders:.2f}**",
                    f"{slope(runs, 'rss_kb'):.1f}",
                    f"{mean:.0f}, {max(r.peak for r in runs)}",
                    f"{busy:.0%}",
                )
            )
            print(lines[-1], file=sys.stderr)
    costs = ("pytest ms", "graders ms", "CPU ms a sample", "RSS kB a row")
    return table(("suite", "C", *costs, "in flight: mean, peak", "server busy"), lines)


def place_table(rows_per_place: int) -> str:
    """How full the places are kept where one core suffices for the load."""
    lines = []
    for in_flight, latency_ms in ((64, 500), (256, 2000)):
        with bench(latency_ms) as at:
            for form in FORMS:
                ran = at.evaluate(form, in_flight * rows_per_place, in_flight)
                share = f"**{ran.mean / in_flight:.3f}**"
                lines.append((form, in_flight, latency_ms, ran.rows, f"{ran.mean:.1f}", share, ran.peak))
                print(lines[-1], file=sys.stderr)
    return table(("suite", "C", "latency ms", "rows", "mean in flight", "mean / C", "peak"), lines)


def start_table(at: Bench, rounds: int) -> str:
    """Seconds from exec to the first request, and from the last response to the exit."""
    lines = []
    for rows in (500, 10_000):
        bare = statistics.median(at.bare(rows).first_s for _ in range(rounds))
        for form in FORMS:
            runs = [at.evaluate(form, rows, 64) for _ in range(rounds)]
            first, leave = (statistics.median(getattr(r, name) for r in runs) for name in ("first_s", "leave_s"))
            lines.append((form, rows, f"{bare:.2f}", f"{first:.2f}", f"**{first - bare:.2f}**", f"**{leave:.2f}**"))
            print(lines[-1], file=sys.stderr)
    return table(
        (
            "suite",
            "rows",
            "bare: to the first test s",
            "to the first request s",
            "more s",
            "last response to exit s",
        ),
        lines,
    )


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and one round")
    quick = parser.parse_args().quick
    counts, rounds = ((500, 2000), 1) if quick else ((500, 2000, 3500, 5000), 3)
    print(header("aiohttp", "transformers"), end="\n\n")
    with bench(50) as at:
        print(cost_table(at, counts, rounds), end="\n\n", flush=True)
        print(start_table(at, rounds), end="\n\n", flush=True)
    print(place_table(5 if quick else 20))


if __name__ == "__main__":
    main()
