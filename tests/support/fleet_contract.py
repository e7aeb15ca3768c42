"""What a run relies on, whatever the scheduler: a fault costs time, not an episode."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standin.engine import SERVER, StandinEngine
from standin.tokens import ByteTokenizer
from support.ask import Ask
from support.scheduler_contract import PROGRAMS, SLEEP, until_up
from support.waiting import until

from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController
from pytest_areal_eval.engines.base import Launch
from pytest_areal_eval.errors import EngineStartError
from pytest_areal_eval.schedulers import processes
from pytest_areal_eval.schedulers.base import InstanceSpec, Scheduler, Shape, State

ANSWER = "The answer is \\boxed{42}."


@contextmanager
def running(
    scheduler: Scheduler, engine: StandinEngine, on_event: Callable[[Event], None] | None = None, **settings: Any
) -> Iterator[RolloutController]:
    """A controller whose replicas come up."""
    chosen = {
        "max_concurrency": 16,
        "backoff_s": 0.02,
        "health_interval_s": 0.2,
        "silence_s": 2.0,
        "episode_timeout_s": 60.0,
    }
    controller = RolloutController(
        engine,
        scheduler,
        settings=ControllerSettings(**{**chosen, **settings}),
        tokenizer=ByteTokenizer(),
        on_event=on_event,
    )
    with controller:
        controller.initialize("role")
        yield controller


def all_ready(controller: RolloutController, count: int) -> None:
    until(lambda: controller.snapshot().replicas_ready == count, f"{count} ready replicas", 40)


def rewards(controller: RolloutController, count: int) -> list[float]:
    rows = [{"question": f"Question {i}.", "answer": ANSWER} for i in range(count)]
    return [rollout.reward for rollout in controller.rollout_batch(rows, Ask())]


def servers(nonces: list[str]) -> list[int]:
    """The stand-in servers of instances, without their supervisors."""
    found: list[int] = []
    for pid in processes.marked(nonces):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except FileNotFoundError:
            continue
        found += [pid] if words[1:2] == [SERVER.encode()] else []
    return found


def nonces_of(scheduler: Any) -> list[str]:
    """Of the instances that run."""
    running = [one.handle for one in scheduler._roster.all() if one.final is None]
    return [until_up(scheduler, handle).nonce for handle in running]


class Robbed(StandinEngine):
    """Somebody else listens on the port of its first start."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._marker = str(folder / "robbed")

    def launch(self, name: str, token: str) -> Launch | None:
        """Through the robber."""
        launch = super().launch(name, token)
        robber = (sys.executable, str(PROGRAMS / "robbed.py"), self._marker, "{host}", "{port}")
        return launch and replace(launch, argv=(*robber, *launch.argv))


class OneGpu(StandinEngine):
    """Wants a GPU."""

    def launch(self, name: str, token: str) -> Launch | None:
        """As ever, but for that."""
        launch = super().launch(name, token)
        return launch and replace(launch, gpus=1)


class FleetContract:
    """Uses the ``scheduler`` fixture of the module."""

    def test_a_killed_and_a_hanging_server_are_replaced_and_no_episode_is_lost(
        self, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """C80: one that is alive and does not answer is as lost as a dead one."""
        monkeypatch.setattr("pytest_areal_eval.controller.probe.PROBE_LIMIT_S", 0.5)
        monkeypatch.setattr("pytest_areal_eval.controller.instances.STOP_GRACE_S", 0.3)  # a stopped one sees no TERM
        events: list[Event] = []
        with running(scheduler, StandinEngine(3, ["--latency-ms", "100"]), events.append) as controller:
            all_ready(controller, 3)
            hanging, killed, _ = servers(nonces_of(scheduler))
            threading.Timer(0.2, os.kill, (hanging, signal.SIGSTOP)).start()
            threading.Timer(0.2, os.kill, (killed, signal.SIGKILL)).start()
            assert rewards(controller, 300) == [1.0] * 300
            until(lambda: controller.snapshot().replicas_lost == 2, "both losses", 20)
            all_ready(controller, 3)
        lost = [event.text for event in events if event.kind == "lost"]
        assert len(lost) == 2
        assert any("gave no answer" in text for text in lost)
        assert any("SIGKILL" in text for text in lost)

    def test_a_server_whose_port_was_taken_gets_another(self, scheduler: Scheduler, tmp_path: Path) -> None:
        with running(scheduler, Robbed(tmp_path)) as controller:
            assert (tmp_path / "robbed").exists()
            assert rewards(controller, 1) == [1.0]


class QueueContract:
    """For schedulers that let instances wait; uses the fixtures ``scheduler`` and ``another``, of another run.

    Attributes:
        nodes: how many nodes the cluster has.
        gpus_per_node: GPUs of each.
    """

    nodes = 1
    gpus_per_node = 1

    def test_what_waits_in_vain_says_for_what_and_leaves_the_queue(
        self, scheduler: Scheduler, another: Scheduler
    ) -> None:
        whole = Shape(gpus_per_node=self.gpus_per_node)
        taken = [another.start(InstanceSpec(f"o/{i}", SLEEP, shape=whole)) for i in range(self.nodes)]
        for handle in taken:
            until_up(another, handle)
        with (
            pytest.raises(EngineStartError, match=r"still waiting after 2 s: .*PENDING"),
            running(scheduler, OneGpu(), queue_timeout_s=2.0),
        ):
            pass
        assert {status.state for status in another.poll(taken).values()} == {State.UP}  # theirs are not ours to end
        another.stop(taken)
        until_up(scheduler, scheduler.start(InstanceSpec("m/1", SLEEP, shape=whole)))
