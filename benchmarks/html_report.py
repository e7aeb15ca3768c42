"""How large a report of 10,000 items x 8 episodes is, how long it takes to write, and how fast Chromium opens it.

python benchmarks/html_report.py [--items 10000] [--samples 8] [--chars 1200] [--keep FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from machine import ROOT, header, table

from pytest_areal_eval.api import Episode, EpisodeStatus
from pytest_areal_eval.journal import Journal
from pytest_areal_eval.journal.items import write_items
from pytest_areal_eval.report.export.html import write_html
from pytest_areal_eval.report.saved import read_run

sys.path.insert(0, str(ROOT / "tests"))
from support.browser import Browser, missing  # type: ignore[import-not-found]


def main() -> None:
    """Write a run, report it, open it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--chars", type=int, default=1_200, help="length of a completion")
    parser.add_argument("--keep", type=Path, help="keep the report as this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _write_run(folder, arguments.items, arguments.samples, arguments.chars)
        started = time.monotonic()
        run = read_run(folder)
        read_s = time.monotonic() - started
        report = arguments.keep or folder / "report.html"
        started = time.monotonic()
        write_html(run, report)
        write_s = time.monotonic() - started
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows = [
            ("episodes", arguments.items * arguments.samples, ""),
            ("journal", f"{(folder / 'episodes.jsonl').stat().st_size / 1e6:.0f} MB", ""),
            ("reading the run", f"{read_s:.1f} s", "3 s for 100,000"),
            ("writing the report", f"{write_s:.1f} s", ""),
            ("peak memory of both", f"{peak_mb:.0f} MB", ""),
            ("the report", f"{report.stat().st_size / 1e6:.1f} MB", "60 MB"),
            *_in_chromium(report),
        ]
        print(header("pytest-areal-eval"), table(("what", "measured", "limit"), rows), sep="\n\n")


def _write_run(folder: Path, n_items: int, n_samples: int, chars: int) -> None:
    """Texts of a 20,000-word vocabulary drawn by Zipf's law with numbers in between: they deflate like solutions do."""
    draw = random.Random(0)
    letters = "etaoinshrdlu"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]

    def text(length: int) -> str:
        drawn = draw.choices(words, weights, k=length // 6)
        drawn[::7] = [str(draw.randint(0, 9999)) for _ in drawn[::7]]
        return " ".join(drawn)

    described = {
        "node": "evals/test_large.py::test_large",
        "n_selected": n_items,
        "n_total": n_items,
        "n_samples": n_samples,
    }
    run = {"schema": 1, "status": "finished", "models": {"model": {}}, "evaluations": {"test_large": described}}
    (folder / "run.json").write_text(json.dumps(run))
    ids = [f"item-{number:05}" for number in range(n_items)]
    write_items(folder, "test_large", [(i, {"level": n % 7, "family": f"family {n % 11}"}) for n, i in enumerate(ids)])
    with Journal.open(folder) as journal:
        for number, item_id in enumerate(ids):
            prompt = text(400)
            for index in range(n_samples):
                reward = float(draw.random() < number / n_items)
                made = _episode(item_id, number, draw)
                journal.append(replace(made, index=index, reward=reward, prompt=prompt, completion=text(chars)))


def _episode(item_id: str, number: int, draw: random.Random) -> Episode:
    return Episode(
        evaluation="test_large",
        item_id=item_id,
        gold=str(number % 100),
        status=EpisodeStatus.SCORED,
        extracted=str(draw.randint(0, 99)),
        stop_reason="stop",
        input_tokens=100,
        output_tokens=draw.randint(50, 900),
        latency_s=draw.expovariate(0.3),
        started_at=1.7e9 + number / 20,
        replica=f"eval-rollout/{number % 12}",
    )


SEARCH = "document.getElementById('search')"
TYPED = f"{SEARCH}.value = 'level=3'; {SEARCH}.dispatchEvent(new Event('input'))"
SORTED = "[...document.querySelectorAll('#head span')].find((c) => c.textContent.startsWith('answer')).click()"
SCROLLED = "document.getElementById('viewport').scrollTop += 3000"


def _in_chromium(report: Path) -> list[tuple[str, str, str]]:
    """From the navigation's start to a page that can be used, and from a key or a click to the next picture."""
    if reason := missing():
        return [("opened in Chromium", str(reason), "3 s")]
    with Browser() as browser:
        ready_ms = []
        for _ in range(3):
            browser.open(report)
            ready_ms.append(int(browser.run("document.body.dataset.ready")))
        return [
            ("opened in Chromium, best of 3", f"{min(ready_ms) / 1000:.2f} s", "3 s"),
            ("a word in the filter, worst of 5", f"{_worst_ms(browser, TYPED):.0f} ms", "100 ms"),
            ("a click that sorts, worst of 5", f"{_worst_ms(browser, SORTED):.0f} ms", "100 ms"),
            ("a jump of 100 rows, worst of 5", f"{_worst_ms(browser, SCROLLED):.0f} ms", "100 ms"),
        ]


def _worst_ms(browser: Browser, action: str) -> float:
    """The longest of five times from an action to the second frame after it, when it is on the screen."""
    taken = []
    for _ in range(5):
        browser.do(
            f"window.taken = 0; const began = performance.now(); {action}; "
            "requestAnimationFrame(() => requestAnimationFrame(() => { window.taken = performance.now() - began; }))"
        )
        taken.append(float(browser.wait("window.taken")))
    return max(taken)


if __name__ == "__main__":
    main()
