"""Whole runs on a Ray cluster: as a person starts them, and what becomes of them when something is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import ray_cluster as cluster
from arithmetic import ITEMS, SOME, evaluate, rewards
from standin.engine import StandinEngine
from support import standin_sessions as standins
from support.fleet_contract import FleetContract, QueueContract, all_ready, nonces_of, running, servers
from support.fleet_contract import rewards as rewards_of
from support.scheduler_contract import SERVER, until_up
from support.sessions import Session
from support.waiting import until

from pytest_areal_eval.controller import Event
from pytest_areal_eval.engines.base import Launch
from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.schedulers import processes
from pytest_areal_eval.schedulers.base import InstanceSpec
from pytest_areal_eval.schedulers.ray.scheduler import RayScheduler

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def scheduler(connected: RayScheduler, address: str) -> Iterator[RayScheduler]:
    yield connected
    connected.stop([one.handle for one in connected._roster.all()])


@pytest.fixture
def another(address: str, tmp_path: Path) -> Iterator[RayScheduler]:
    one = cluster.scheduler(tmp_path, address)
    yield one
    one.close()


class TestContract(FleetContract, QueueContract):
    """A loss costs time, not an episode."""

    nodes = len(cluster.NODES)
    gpus_per_node = cluster.GPUS


class WholeNodes(StandinEngine):
    """Three replicas, each of which takes all CPUs of a node."""

    def launch(self, name: str, token: str) -> Launch | None:
        launch = super().launch(name, token)
        return launch and replace(launch, cpus=8)


class TestLostNodes:
    def test_nodes_without_power_or_network_leave_the_run_to_the_others(
        self, scheduler: RayScheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """C94: a server that is cut off from its run ends by itself."""
        monkeypatch.setattr("pytest_areal_eval.controller.instances.STOP_GRACE_S", 0.3)  # nobody there hears of it
        events: list[Event] = []
        _, alone, dark = cluster.NODES
        try:
            with running(scheduler, WholeNodes(3, ["--latency-ms", "50"]), events.append) as controller:
                all_ready(controller, 3)
                threading.Timer(0.2, cluster.cut_power, (dark,)).start()
                threading.Timer(0.2, cluster.cut_network, (alone,)).start()
                nonces = nonces_of(scheduler)
                assert rewards_of(controller, 300) == [1.0] * 300
                until(lambda: controller.snapshot().replicas_lost == 2, "both losses", 20)
                assert controller.snapshot().replicas_ready == 1
                until(lambda: len(servers(nonces)) == 1, "the lonely server's end", cluster.LEASE_S + 5)
                until(lambda: any("PENDING: wants 1 x" in event.text for event in events), "the reason", 30)
        finally:
            cluster.cut_power(alone)


class TestSessions:
    """pytest itself, with stand-ins for SGLang."""

    def start(self, session: Session, address: str, backend: str, rows: int) -> Session:
        cluster_words = ["--scheduler=ray", f"--ray-address={address}", f"--backend={backend}"]
        session.write(standins.SUITE.format(rows=rows))
        return session.start(*cluster_words, "--max-concurrency=24", *standins.words("sglang", session, 0.5))

    def test_twelve_replicas_share_the_work_and_go(self, session: Session, address: str) -> None:
        assert self.start(session, address, "sglang:d12p1t1", rows=240).wait(90) == 0, session.output
        session.leaves_nothing()
        answered = standins.shares(session)
        assert answered.total() == 240
        assert len(answered) == 12

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_nothing_is_left_of_a_session_that_ends_early(
        self, session: Session, address: str, number: signal.Signals
    ) -> None:
        """C92: not on any node; what had finished is kept."""
        self.start(session, address, "sglang:d3p1t4", rows=480)
        standins.until_answers(session, 10)
        session.send(number)
        assert session.wait(20) == (pytest.ExitCode.INTERRUPTED if number == signal.SIGINT else -number), session.output
        session.leaves_nothing(5)
        assert {row["status"] for row in session.rows} == {"scored"}

    def test_three_replicas_score_each_item_as_one_does_here(
        self, address: str, tmp_path: Path, rewards_here: Mapping[str, float]
    ) -> None:
        done = evaluate(
            "--scheduler=ray", f"--ray-address={address}", "--backend=hf:d3", SOME, f"--results-dir={tmp_path}"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(rewards_here) == ITEMS
        assert rewards(tmp_path) == rewards_here

    def test_more_gpus_than_the_cluster_has_is_a_usage_error(self, address: str, tmp_path: Path) -> None:
        done = evaluate("--scheduler=ray", f"--ray-address={address}", "--backend=hf:d13", f"--results-dir={tmp_path}")
        assert done.returncode == 4, done.stdout + done.stderr
        assert "12 GPUs on 3 nodes" in done.stdout + done.stderr


class TestLostHead:
    """Last, since all of the cluster goes with it."""

    def test_a_lost_head_ends_the_driver_but_not_this_process(
        self, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ray ends its driver's process when it does not find the head again; pytest must report what it has."""
        monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
        one = cluster.scheduler(tmp_path, address)
        handle = one.start(InstanceSpec("m/0", SERVER), exclude=cluster.NODES[:2])
        nonce = until_up(one, handle).nonce
        cluster.cut_power(cluster.NODES[0])

        def lost() -> str:
            try:
                one.poll([handle])
                one.capacity()
            except SchedulerError as error:
                return str(error)
            return ""

        until(lambda: "lost" in lost(), "the loss", 30)
        assert "Failed to connect to GCS" in lost()
        one.close()
        until(lambda: not processes.marked([nonce]), "the server's end on the other node", 30)
