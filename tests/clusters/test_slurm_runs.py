"""Whole runs on a Slurm cluster: real generation, mistakes that stop a run, clusters that are like real ones."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import slurm_cluster as cluster
from arithmetic import ITEMS, SOME, evaluate, rewards
from standin.engine import SERVER as STANDIN
from standin.engine import StandinEngine
from standin.tokens import ByteTokenizer
from support import standin_sessions as standins
from support.ask import Ask
from support.fleet_contract import FleetContract, QueueContract
from support.scheduler_contract import SERVER, SLEEP, nonce_at, until_gone, until_up
from support.sessions import Session
from support.waiting import until

from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController
from pytest_areal_eval.engines.base import Gang, Launch
from pytest_areal_eval.errors import CannotFit
from pytest_areal_eval.schedulers import processes
from pytest_areal_eval.schedulers.base import Address, Handle, InstanceSpec, Lost, Shape
from pytest_areal_eval.schedulers.slurm import SlurmScheduler

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="class")
def three_nodes(slurm: None) -> None:
    cluster.start("--nodes", "3", "--gpus", "8")


@pytest.fixture(scope="class")
def twelve_nodes(slurm: None) -> None:
    cluster.start("--nodes", "12", "--gpus", "8")


@pytest.fixture(scope="class")
def lifelike_nodes(slurm: None) -> Iterator[None]:
    """Each node has its own network, its own /tmp and cgroups."""
    cluster.start("--nodes", "3", "--gpus", "2", "--net", "ns", "--lost-after", "5", "--cgroup", "--private-tmp")
    yield
    cluster.stop()


@pytest.mark.usefixtures("three_nodes")
class TestThreeNodes:
    def test_three_replicas_score_each_item_as_one_does_here(
        self, tmp_path: Path, rewards_here: Mapping[str, float]
    ) -> None:
        done = evaluate("--scheduler=slurm", "--backend=hf:d3", SOME, f"--results-dir={tmp_path}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(rewards_here) == ITEMS
        assert rewards(tmp_path) == rewards_here
        assert cluster.jobs() == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_nothing_is_left_of_a_session_that_ends_early(self, session: Session, number: signal.Signals) -> None:
        """C92: no job either; what had finished is kept."""
        start(session, "vllm:d3t4", rows=400, latency_s=0.5)
        standins.until_answers(session, 10)
        session.send(number)
        assert session.wait(20) == pytest.ExitCode.INTERRUPTED, session.output
        session.leaves_nothing(1)
        assert cluster.jobs() == []
        assert {row["status"] for row in session.rows} == {"scored"}

    def test_servers_are_steps_where_pytest_runs_inside_an_allocation(self, session: Session) -> None:
        """As in a batch script: two replicas on four of the eight GPUs each, and no further job."""
        salloc = ("salloc", "-Q", "-N1", "--gpus-per-node=8", "-c16", "--ntasks-per-node=1")
        start(session, "vllm:d2t4", rows=40, latency_s=0.2, before=salloc)
        assert session.wait(60) == 0, session.output
        assert len(standins.shares(session)) == 2
        session.leaves_nothing(3)
        until(lambda: cluster.jobs() == [], "the allocation's end", 5)

    @pytest.mark.parametrize(
        ("option", "said"),
        [
            (
                "--slurm-partition=gpu",
                "this cluster has no partition gpu\nThere are: high, main.",
            ),
            (
                "--backend=hf:d25",
                "25 replicas of 1 GPU do not fit: the slurm scheduler has 24 GPUs on 3 nodes",
            ),
            (
                "--slurm-time=x",
                "(1 GPU, CPUs: 1) with --slurm-time=x: Invalid --time specification\n",
            ),
        ],
    )
    def test_a_mistake_is_one_message_and_exit_status_4_in_seconds(
        self, tmp_path: Path, option: str, said: str
    ) -> None:
        began = time.monotonic()
        done = evaluate("--scheduler=slurm", option, f"--results-dir={tmp_path}")
        assert time.monotonic() - began < 10
        assert done.returncode == 4, done.stdout + done.stderr
        assert (done.stdout + done.stderr).count(said) == 1
        assert "sbatch: error" not in done.stdout + done.stderr
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
            until(lambda: len(serving(place.nonce)) == 2, "both ranks")
            ends = sorted(words[words.index("--latency-ms") :] for words in serving(place.nonce).values())
            assert ends == [["--latency-ms", "0"], ["--latency-ms", "1", "--ready-after", "1"]]
            (rollout,) = controller.rollout_batch([{"question": "6 x 7?", "answer": "42"}], Ask())
            assert [episode.status.value for episode in rollout.episodes] == ["scored"]
        scheduler.close()
        assert cluster.jobs() == []


@pytest.mark.usefixtures("three_nodes")
class TestContract(FleetContract, QueueContract):
    """A loss costs time, not an episode."""

    nodes = 3
    gpus_per_node = 8

    @pytest.fixture
    def scheduler(self) -> Iterator[SlurmScheduler]:
        yield from fresh()

    @pytest.fixture
    def another(self) -> Iterator[SlurmScheduler]:
        yield from fresh()


def fresh() -> Iterator[SlurmScheduler]:
    one = cluster.scheduler()
    yield one
    one.close()


def start(session: Session, backend: str, rows: int, latency_s: float, *more: str, before: Sequence[str] = ()) -> None:
    """Start pytest with stand-ins for vLLM, its folders where the nodes see them."""
    session.write(standins.SUITE.format(rows=rows))
    place = [f"--shared-dir={cluster.SHARED / session.mark}", "--scheduler=slurm", f"--backend={backend}"]
    session.start(*place, *standins.words("vllm", session, latency_s), *more, before=before)


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


def serving(nonce: str) -> dict[int, list[str]]:
    """The command of each stand-in server of an instance, by pid."""
    found = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1] for pid in processes.marked([nonce])}
    return {pid: words for pid, words in found.items() if words[1:2] == [STANDIN]}


def kill_servers(nonce: str) -> None:
    for pid in serving(nonce):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("twelve_nodes")
class TestTwelveNodes:
    def test_96_replicas_come_up_share_the_work_and_go(self, session: Session) -> None:
        start(session, "vllm:d96t1", 600, 2.0, "--max-concurrency=192")
        assert session.wait(110) == 0, session.output
        session.leaves_nothing(1)
        assert cluster.jobs() == []
        answered = standins.shares(session)
        assert answered.total() == 600
        assert len(answered) == 96


@pytest.fixture(scope="class")
def accounted_nodes(slurm: None) -> None:
    cluster.start("--nodes", "2", "--gpus", "2", "--accounting")


@pytest.mark.usefixtures("accounted_nodes")
class TestAccounts:
    def test_an_unknown_account_is_told_and_a_known_one_is_charged(self, tmp_path: Path) -> None:
        began = time.monotonic()
        done = evaluate("--scheduler=slurm", "--slurm-account=nobody", f"--results-dir={tmp_path}")
        assert time.monotonic() - began < 10
        assert done.returncode == 4, done.stdout + done.stderr
        said = "with --slurm-account=nobody: Batch job submission failed: Invalid account or account/partition"
        assert (done.stdout + done.stderr).count(said) == 1
        assert "See which are yours: sacctmgr show associations" in done.stdout + done.stderr
        unknown = cluster.scheduler(qos="nobodys")
        with pytest.raises(CannotFit, match=r"with --slurm-qos=nobodys: .* Invalid qos"):
            unknown.start(InstanceSpec("m/0", SERVER))
        one = cluster.scheduler(account="root", qos="normal")
        handle = one.start(InstanceSpec("m/0", SERVER))
        until_up(one, handle)
        assert "Account=root QOS=normal" in cluster.slurm("scontrol", "show", "job", handle.id)
        one.close()


@pytest.fixture(scope="class")
def overdue(lifelike_nodes: None) -> Iterator[tuple[SlurmScheduler, Handle]]:
    """A server whose job's time is over from the first test on: Slurm looks every 30 s."""
    one = cluster.scheduler()
    handle = one.start(InstanceSpec("m/overdue", SLEEP), exclude=NODES[:2])
    until_up(one, handle)
    cluster.slurm("scontrol", "update", f"JobId={handle.id}", f"EndTime={time.strftime('%Y-%m-%dT%H:%M:%S')}")
    yield one, handle
    one.close()


@pytest.mark.usefixtures("overdue")
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
        began = time.monotonic()
        done = evaluate("--scheduler=slurm", "--limit=2", f"--results-dir={tmp_path}")
        assert time.monotonic() - began < 10
        assert done.returncode == 4, done.stdout + done.stderr
        assert f"and wrote nothing into {tmp_path}" in done.stdout + done.stderr
        assert "--shared-dir=DIR" in done.stdout + done.stderr

    def test_a_node_without_power_and_one_without_network_are_told_so(self) -> None:
        """C94: and the server that nobody can reach any more ends by its lease, which it reads in the folder."""
        one = cluster.scheduler(cluster.LEASE_S)
        handles, places = zip(*(on_node(one, name) for name in NODES[:2]), strict=True)
        assert [nonce_at(place.host, place.port) for place in places] == [place.nonce for place in places]
        cluster.node("kill-node", NODES[0])
        cluster.node("cut-node", NODES[1])
        try:
            with pytest.raises(TimeoutError):
                nonce_at(places[1].host, places[1].port)
            dark, alone = (until_gone(one, handle, 60) for handle in handles)
            assert (dark.lost, alone.lost) == (Lost.NODE, Lost.NODE)
            assert "NODE_FAIL" in dark.reason
            assert processes.marked([places[1].nonce])
            one.close()
            until(lambda: not processes.marked([places[1].nonce]), "the lonely server's end", cluster.LEASE_S + 3)
        finally:
            one.close()
            cluster.node("cut-node", "--heal", NODES[1])

    def test_a_time_limit_is_told_so(self, overdue: tuple[SlurmScheduler, Handle]) -> None:
        assert until_gone(*overdue, 60).lost is Lost.TIME_LIMIT


NODES = ("node1", "node2", "node3")


def on_node(scheduler: SlurmScheduler, name: str) -> tuple[Handle, Address]:
    """A server that has all GPUs of a node."""
    spec = InstanceSpec(f"m/{name}", SERVER, shape=Shape(gpus_per_node=2))
    handle = scheduler.start(spec, exclude=[node for node in NODES if node != name])
    return handle, until_up(scheduler, handle)
