"""What 1, 12 and 96 replicas cost the machine that controls them: a real Slurm cluster, stand-in servers.

    tests/clusters/start-slurm --nodes 12 --gpus 8 --cpus 16
    python benchmarks/replicas.py --shared-dir /var/lib/fake-slurm/shared

Each replica is a job with one GPU that runs ``fake_server.py``.  Servers, Slurm's daemons and the client share the
machine, so start-up times are the servers' own processor time more than anything else; what grows on the client's
side is in the columns of the poll.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import free_load, table

from pytest_areal_eval.api import ModelRequest, Rollout
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.engines.base import Launch
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.schedulers.base import Handle, InstanceSpec, Status
from pytest_areal_eval.schedulers.slurm import SlurmScheduler, commands

LATENCY_MS = 50
READY_LIMIT_S = 300.0
STEADY_S = 10.0


class Engine(HFEngine):
    """The embedded engine's HTTP, spoken to the fake server."""

    def launch(self, name: str, token: str) -> Launch:
        """One GPU, which it does not use."""
        argv: tuple[str, ...] = (
            sys.executable,
            str(Path(__file__).with_name("fake_server.py")),
            f"--latency-ms={LATENCY_MS}",
        )
        argv += ("--host={host}", "--port={port}", "--nonce={nonce}")
        return replace(super().launch(name, token), argv=argv, gpus=1)


class Ask:
    """One request; the reward is nothing's."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        """Remember which replica answered."""
        reply = await engine.agenerate(ModelRequest(messages=[{"role": "user", "content": data["q"]}]))
        ANSWERED[reply.replica] += 1
        return 1.0


class Timed(SlurmScheduler):
    """Notes what starting and polling cost."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.polls, self.poll_s, self.started_at = 0, 0.0, 0.0

    def start(self, spec: InstanceSpec, exclude: Collection[str] = ()) -> Handle:
        """As ever."""
        handle = super().start(spec, exclude)
        self.started_at = time.monotonic()
        return handle

    def poll(self, handles: Sequence[Handle]) -> dict[Handle, Status]:
        """As ever."""
        began = time.perf_counter()
        try:
            return super().poll(handles)
        finally:
            self.polls, self.poll_s = self.polls + 1, self.poll_s + time.perf_counter() - began


ANSWERED: Counter[str] = Counter()


def main() -> None:
    """Measure each size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared-dir", type=Path, required=True)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 12, 96])
    parser.add_argument("--episodes", type=int, default=4000)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {free_load()}, {commands.run('sinfo', '--version').strip()}\n")
    head: tuple[str, ...] = ("replicas", "submitted s", "first ready s", "all ready s", "ms a poll", "idle CPU %")
    head += ("requests/s", "fewest–most a replica", "stopped s")
    print(table(head, [measure(count, options.shared_dir, options.episodes) for count in options.replicas]))


def measure(count: int, shared_dir: Path, episodes: int) -> list[str]:
    """Bring replicas up, leave them alone for a while, give them work, end them; a row of the table."""
    ANSWERED.clear()
    scheduler = Timed(shared_dir=shared_dir)
    settings = ControllerSettings(max_concurrency=min(256, 32 * count))
    controller = RolloutController(Engine("none", replicas=count), scheduler, settings=settings, tokenizer=object())
    began = time.monotonic()
    controller.initialize("bench")
    first_s = time.monotonic() - began
    while controller.snapshot().replicas_ready < count:
        if time.monotonic() - began > READY_LIMIT_S:
            raise SystemExit(f"{controller.snapshot().replicas_ready} of {count} replicas within {READY_LIMIT_S:g} s")
        time.sleep(0.05)
    all_s, submitted_s = time.monotonic() - began, scheduler.started_at - began
    poll_ms, idle_cpu = leave_alone(scheduler)
    per_s = work(controller, episodes)
    began = time.monotonic()
    controller.destroy()
    scheduler.close()
    stopped_s, shares = time.monotonic() - began, sorted(ANSWERED.values())
    if len(shares) != count:
        raise SystemExit(f"{count - len(shares)} of {count} replicas had nothing to do")
    times = [f"{seconds:.1f}" for seconds in (submitted_s, first_s, all_s)]
    return [str(count), *times, poll_ms, idle_cpu, f"{per_s:.0f}", f"{shares[0]}–{shares[-1]}", f"{stopped_s:.1f}"]


def leave_alone(scheduler: Timed) -> tuple[str, str]:
    """Milliseconds a poll, and per cent of a core that this process and its squeues use, while nothing happens."""
    scheduler.polls, scheduler.poll_s, used = 0, 0.0, sum(os.times()[:4])
    time.sleep(STEADY_S)
    cpu_s = sum(os.times()[:4]) - used
    return f"{1000 * scheduler.poll_s / max(1, scheduler.polls):.1f}", f"{100 * cpu_s / STEADY_S:.1f}"


def work(controller: RolloutController, episodes: int) -> float:
    """Episodes a second."""
    began = time.monotonic()
    rollouts: list[Rollout] = controller.rollout_batch([{"q": f"Question {i}."} for i in range(episodes)], Ask())
    failed = [episode for rollout in rollouts for episode in rollout.episodes if episode.reward != 1.0]
    if failed:
        raise SystemExit(f"{len(failed)} episodes failed, the first: {failed[0].error}")
    return episodes / (time.monotonic() - began)


if __name__ == "__main__":
    main()
