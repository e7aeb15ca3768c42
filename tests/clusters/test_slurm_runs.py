"""Whole runs on a Slurm cluster: real generation, mistakes that stop a run, clusters that are like real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster as cluster
from standin.engine import SERVER as STANDIN
from standin.engine import StandinEngine
from standin.tokens import ByteTokenizer
from support.ask import Ask
from support.scheduler_contract import SERVER, nonce_at, until_gone, until_up
from support.waiting import until

from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController
from pytest_areal_eval.engines.base import Gang, Launch
from pytest_areal_eval.schedulers import processes
from pytest_areal_eval.schedulers.base import Address, InstanceSpec, Lost, Shape
from pytest_areal_eval.schedulers.slurm import SlurmScheduler

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="class")
def three_nodes(slurm: None) -> None:
    cluster.start("--nodes", "3", "--gpus", "8")


@pytest.fixture(scope="class")
def twelve_nodes(slurm: None) -> None:
    cluster.start("--nodes", "12", "--gpus", "8")


@pytest.fixture(scope="class")
def lifelike_nodes(slurm: None) -> Iterator[None]:
    """Each node has its own network, its own /tmp and cgroups."""
    cluster.start("--nodes", "2", "--gpus", "2", "--net", "ns", "--cgroup", "--private-tmp")
    yield
    cluster.stop()


def evaluate(*options: str, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    """Run the shipped evaluation in a process of its own."""
    words = [sys.executable, "-m", "pytest", "evals/test_arithmetic.py", "--model=models/tiny-math", *options]
    return subprocess.run(words, cwd=ROOT, env=dict(env), capture_output=True, text=True, timeout=110)


def rewards(folder: Path) -> dict[str, float]:
    (journal,) = {path.resolve() for path in folder.glob("*/episodes.jsonl")}
    rows: list[dict[str, Any]] = [json.loads(line) for line in journal.read_text().splitlines()]
    return {row["item_id"]: row["reward"] for row in rows if "reward" in row}


@pytest.mark.usefixtures("three_nodes")
class TestThreeNodes:
    def test_three_replicas_give_the_rewards_of_one_local_one(self, tmp_path: Path) -> None:
        there = evaluate("--limit=100", "--scheduler=slurm", "--backend=hf:d3", f"--results-dir={tmp_path}/slurm")
        assert there.returncode == 0, there.stdout + there.stderr
        here = evaluate("--limit=100", "--backend=hf:d1", f"--results-dir={tmp_path}/local")
        assert here.returncode == 0, here.stdout + here.stderr
        assert len(rewards(tmp_path / "local")) == 100
        assert rewards(tmp_path / "slurm") == rewards(tmp_path / "local")
        assert cluster.jobs() == []

    def test_a_mistake_is_one_message_and_exit_status_4(self, tmp_path: Path) -> None:
        done = evaluate("--scheduler=slurm", "--slurm-partition=gpu", f"--results-dir={tmp_path}")
        assert done.returncode == 4, done.stdout + done.stderr
        said = "--slurm-partition=gpu: this cluster has no partition gpu\nThere are: high, main."
        assert (done.stdout + done.stderr).count(said) == 1

    def test_a_lost_replicas_episodes_finish_elsewhere_and_it_comes_back(self) -> None:
        scheduler, told = cluster.scheduler(), list[Event]()
        settings = ControllerSettings(max_concurrency=16, health_interval_s=0.5, episode_timeout_s=60)
        engine = StandinEngine(2, ["--latency-ms", "200"])
        with RolloutController(
            engine, scheduler, settings=settings, tokenizer=ByteTokenizer(), on_event=told.append
        ) as controller:
            controller.initialize("m")
            until(lambda: controller.snapshot().replicas_ready == 2, "both replicas", 30)
            ids = [controller.submit({"question": f"Question {i}.", "answer": "42"}, Ask()) for i in range(200)]
            until(lambda: controller.snapshot().done > 20, "a part of the work", 30)
            cluster.slurm("scancel", cluster.jobs()[0])
            rollouts = controller.wait(ids=ids, timeout=60)
            assert {episode.status.value for rollout in rollouts for episode in rollout.episodes} == {"scored"}
            until(lambda: controller.snapshot().replicas_ready == 2, "the lost one's next attempt", 30)
        assert [event.kind for event in told if event.kind in ("lost", "restart")] == ["lost", "restart"]
        scheduler.close()
        assert cluster.jobs() == []

    def test_a_node_that_loses_two_servers_is_not_used_again(self) -> None:
        scheduler, told, places = cluster.scheduler(), list[Event](), list[str]()
        settings = ControllerSettings(health_interval_s=0.2, restarts=3)
        with RolloutController(
            StandinEngine(), scheduler, settings=settings, tokenizer=ByteTokenizer(), on_event=told.append
        ) as controller:
            controller.initialize("m")
            for lost in range(3):
                until(lambda lost=lost: controller.snapshot().replicas_ready > 0, "a replica", 30)  # type: ignore[misc]
                place = newest(scheduler)
                places += place.nodes
                if lost < 2:
                    kill_servers(place.nonce)
                    until(lambda lost=lost: controller.snapshot().replicas_lost > lost, "its loss")  # type: ignore[misc]
        assert places[0] == places[1] != places[2]
        warnings = [event.text for event in told if event.kind == "warning"]
        assert warnings == [f"{places[0]} is not used again: 2 servers were lost there"]
        scheduler.close()

    def test_a_replica_above_one_nodes_gpus_runs_on_two(self) -> None:
        scheduler = cluster.scheduler()
        with RolloutController(TwelveGpus(), scheduler, tokenizer=ByteTokenizer()) as controller:
            controller.initialize("m")
            place = newest(scheduler)
            assert [len(gpus) for gpus in place.gpus] == [6, 6]
            assert len({*place.nodes}) == 2
            until(lambda: len(standins(place.nonce)) == 2, "both ranks")
            ends = sorted(words[words.index("--nonce") + 2 :] for words in standins(place.nonce).values())
            assert ends == [["--latency-ms", "0"], ["--latency-ms", "1", "--ready-after", "1"]]
            (rollout,) = controller.rollout_batch([{"question": "6 x 7?", "answer": "42"}], Ask())
            assert [episode.status.value for episode in rollout.episodes] == ["scored"]
        scheduler.close()
        assert cluster.jobs() == []


class TwelveGpus(StandinEngine):
    """One replica that no node can hold; its first rank answers at once."""

    def launch(self, name: str, token: str) -> Launch | None:
        launch = super().launch(name, token)
        gang = Gang(("--latency-ms", "{rank}"), ("--ready-after", "{rank}"))
        return launch and replace(launch, gpus=12, gang=gang)


def newest(scheduler: SlurmScheduler) -> Address:
    """Where the instance listens that was started last."""
    handle = scheduler._roster.all()[-1].handle
    return until_up(scheduler, handle)


def standins(nonce: str) -> dict[int, list[str]]:
    """The command of each stand-in server of an instance, by pid."""
    found = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1] for pid in processes.marked([nonce])}
    return {pid: words for pid, words in found.items() if words[1:2] == [STANDIN]}


def kill_servers(nonce: str) -> None:
    for pid in standins(nonce):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("twelve_nodes")
class TestTwelveNodes:
    def test_96_replicas_come_up_share_the_work_and_go(self) -> None:
        words = [sys.executable, "benchmarks/replicas.py", f"--shared-dir={cluster.SHARED}", "--replicas=96"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stdout + done.stderr
        fewest, most = done.stdout.splitlines()[-1].split(" | ")[-2].split("–")
        assert 0.5 * 4000 / 96 < int(fewest) <= int(most) < 2 * 4000 / 96
        assert cluster.jobs() == []


@pytest.mark.usefixtures("lifelike_nodes")
class TestLifelikeNodes:
    def test_a_server_listens_at_its_nodes_address(self) -> None:
        one = cluster.scheduler()
        handle = one.start(InstanceSpec("m/0", SERVER, shape=Shape(gpus_per_node=1)))
        place = until_up(one, handle)
        assert place.host.startswith("198.18.7.")
        assert nonce_at(place.host, place.port) == place.nonce
        one.close()
        assert not processes.marked([place.nonce])

    def test_a_folder_that_the_nodes_do_not_see_is_told_in_seconds(self, tmp_path: Path) -> None:
        done = evaluate("--scheduler=slurm", "--limit=2", f"--results-dir={tmp_path}")
        assert done.returncode == 4, done.stdout + done.stderr
        assert f"and wrote nothing into {tmp_path}" in done.stdout + done.stderr
        assert "--shared-dir=DIR" in done.stdout + done.stderr

    def test_a_cut_off_node_is_lost_and_its_server_ends(self) -> None:
        """The folder is the nodes' only way to the run: it lives on where the network does not."""
        one = cluster.scheduler()
        handle = one.start(InstanceSpec("m/0", SERVER, shape=Shape(gpus_per_node=2)))
        place = until_up(one, handle)
        assert nonce_at(place.host, place.port) == place.nonce
        cluster.node("cut-node", place.nodes[0])
        try:
            with pytest.raises(TimeoutError):
                nonce_at(place.host, place.port)
            assert until_gone(one, handle, 45).lost is Lost.NODE
            assert processes.marked([place.nonce])
        finally:
            cluster.node("cut-node", "--heal", place.nodes[0])
        until(lambda: not processes.marked([place.nonce]), "the server's end", 20)
        one.close()
