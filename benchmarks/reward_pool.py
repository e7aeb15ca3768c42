"""What grading costs: calls a second through the pool, and CPU time of the parent for each.

    python benchmarks/reward_pool.py [--calls 4000] [--workers 1 2]

``trivial`` shows the pool's own cost, ``gsm8k`` a maths answer, ``start`` the first call of a cold pool, and ``kill``
the time from a hanging call's limit to the answer of the next call.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from pytest_areal_eval.errors import GraderTimeout
from pytest_areal_eval.rewards import RewardPool

IN_FLIGHT = 256
COMPLETION = "She has 16 - 3 - 4 = 9 eggs left and sells each for $2. " * 20 + "So she makes 9 * 2 = 18.\n#### %d"
GSM8K = "pytest_areal_eval.rewards.gsm8k_reward_fn"


def trivial(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, **columns: Any) -> float:
    """A reward that costs nothing, with the arguments of one that does."""
    return 1.0


async def rate(pool: RewardPool, fn: str | Callable[..., Any], calls: int) -> tuple[float, float]:
    """(calls a second, milliseconds of the parent's CPU a call) with 256 calls in flight."""
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(n: int) -> None:
        async with slots:
            await pool.score(fn, "p" * 500, COMPLETION % n, list(range(200)), list(range(300)), where="", answer="18")

    await one(18)
    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one(n) for n in range(calls)))
    return calls / (time.perf_counter() - started), (time.process_time() - cpu) / calls * 1e3


async def start_s(pool: RewardPool) -> float:
    """Seconds from nothing to the first reward."""
    return await _seconds(pool.score(trivial, "", "", [], [], where=""))


async def kill_s(pool: RewardPool) -> float:
    """Seconds past a hanging call's limit of 0.5 s until the next call has its reward."""

    async def hang_then_score() -> None:
        try:
            await pool.score("time.sleep", 60, where="", timeout_s=0.5)
        except GraderTimeout:
            await pool.score(trivial, "", "", [], [], where="")

    return await _seconds(hang_then_score()) - 0.5


async def _seconds(work: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def measure(workers: int, calls: int) -> list[str]:
    """One row of the table."""
    with RewardPool(workers) as pool:
        start = await start_s(pool)
        trivial_rate, trivial_cpu_ms = await rate(pool, trivial, calls)
        gsm8k_rate, gsm8k_cpu_ms = await rate(pool, GSM8K, calls)
        kill = await kill_s(pool)
    numbers = (f"{trivial_rate:.0f}", f"{trivial_cpu_ms:.3f}", f"{gsm8k_rate:.0f}", f"{gsm8k_cpu_ms:.3f}")
    return [str(workers), f"{start:.2f}", *numbers, f"{kill * 1e3:.0f}"]


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--calls", type=int, default=4000)
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    chosen = options.parse_args()
    table = Table("workers", "start s", "trivial/s", "CPU ms", "gsm8k/s", "CPU ms", "kill ms")
    for workers in chosen.workers:
        table.add_row(*asyncio.run(measure(workers, chosen.calls)))
    Console().print(table)


if __name__ == "__main__":
    main()
