"""The Ray scheduler on a real cluster of virtual nodes: the contract, and what happens when something is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray_cluster as cluster
from standin.engine import StandinEngine
from standin.tokens import ByteTokenizer
from support.scheduler_contract import (
    SERVER,
    SLEEP,
    SchedulerContract,
    family,
    nonce_at,
    shell,
    status_of,
    until_gone,
    until_up,
)
from support.waiting import until

from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController
from pytest_areal_eval.engines.base import Launch
from pytest_areal_eval.errors import CannotFit, SchedulerError
from pytest_areal_eval.schedulers import processes
from pytest_areal_eval.schedulers.base import InstanceSpec, Lost, Shape, State
from pytest_areal_eval.schedulers.ray import scheduler as module
from pytest_areal_eval.schedulers.ray.scheduler import RayScheduler

pytestmark = pytest.mark.timeout(90)
ROOT = Path(__file__).parents[2]
Connect = Callable[..., RayScheduler]


@pytest.fixture
def address(ray_cluster_address: str) -> str:
    return cluster.start()  # a node that the test before has killed comes back


@pytest.fixture(scope="module")
def shared(ray_cluster_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayScheduler]:
    one = cluster.scheduler(tmp_path_factory.mktemp("shared"), ray_cluster_address)
    yield one
    one.close()


@pytest.fixture
def scheduler(shared: RayScheduler) -> Iterator[RayScheduler]:
    """Connecting takes 4 s, so that the tests share one where they leave the cluster whole."""
    before = set(shared._instances)
    yield shared
    shared.stop([handle for handle in shared._instances if handle not in before])


@pytest.fixture
def connect(address: str, tmp_path: Path) -> Iterator[Connect]:
    made: list[RayScheduler] = []

    def make(**options: object) -> RayScheduler:
        made.append(cluster.scheduler(tmp_path, address, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


class TestContract(SchedulerContract):
    """A placement group for each instance."""

    nodes = len(cluster.NODES)
    gpus_per_node = cluster.GPUS
    many = 6

    @pytest.fixture
    def own(self, connect: Connect) -> RayScheduler:
        return connect()


class TestPlaces:
    def test_replicas_share_a_node_without_sharing_a_gpu(self, scheduler: RayScheduler) -> None:
        spec = shell('echo "sees $CUDA_VISIBLE_DEVICES"; exec sleep 300')
        pair = InstanceSpec("m/0", spec.argv, shape=Shape(gpus_per_node=2))
        handles = [scheduler.start(pair, exclude=cluster.NODES[1:]) for _ in range(2)]
        places = [until_up(scheduler, handle) for handle in handles]
        assert {place.host for place in places} == {cluster.NODES[0]}
        assert sorted(gpu for place in places for gpu in place.gpus[0]) == ["0", "1", "2", "3"]
        for handle, place in zip(handles, places, strict=True):
            line = f"sees {','.join(place.gpus[0])}"
            until(lambda handle=handle, line=line: line in scheduler.log_tail(handle), line)  # type: ignore[misc]
        head = next(node for node in scheduler.capacity().nodes if node.name == cluster.NODES[0])
        assert (head.gpus_total, head.gpus_free) == (4, 0)

    def test_a_server_without_gpus_sees_none_and_nothing_of_ray(self, scheduler: RayScheduler) -> None:
        """An engine that finds Ray's or a job's variables takes them for its own launcher's."""
        handle = scheduler.start(shell('echo "[$CUDA_VISIBLE_DEVICES]"; env; readlink /proc/self/fd/0'))
        until_gone(scheduler, handle)
        first, *environment, stdin, _ = scheduler.log_tail(handle, 1000).splitlines()
        assert (first, stdin) == ("[]", "/dev/null")
        assert not [line for line in environment if line.startswith(("RAY_", "SLURM_", "PYTHONBREAKPOINT"))]

    def test_this_machines_python_stands_for_the_nodes(self, scheduler: RayScheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", (sys.executable, "-c", "import sys; print(sys.executable)")))
        until_gone(scheduler, handle)
        assert Path(scheduler.log_tail(handle).splitlines()[0]).samefile(sys.executable)

    def test_a_runtime_environment_reaches_the_server(self, connect: Connect) -> None:
        one = connect(runtime_env={"env_vars": {"MINE": "from ray"}})
        handle = one.start(shell('echo "$MINE, $TOO"', TOO="ours"))
        until_gone(one, handle)
        assert one.log_tail(handle).splitlines()[0] == "from ray, ours"

    def test_a_broken_runtime_environment_is_told(self, connect: Connect) -> None:
        one = connect(runtime_env={"working_dir": "/no/such/folder"})
        with pytest.raises(SchedulerError, match="/no/such/folder"):
            one.capacity()

    def test_a_replica_over_two_nodes_is_one_group_whose_ranks_meet(self, scheduler: RayScheduler) -> None:
        line = "echo $NODE_RANK/$NNODES {rank}/{nnodes} $MASTER_ADDR:$MASTER_PORT {master_addr}:{master_port}"
        spec = InstanceSpec("m/0", ("sh", "-c", f"{line}; exec sleep 300"), shape=Shape(nodes=2, gpus_per_node=4))
        handle = scheduler.start(spec)
        place = until_up(scheduler, handle)
        logs = [Path(scheduler.log_path(handle)), Path(scheduler.log_path(handle) + ".1")]
        until(lambda: all(log.exists() and log.read_text() for log in logs), "both ranks' lines", 20)
        assert len(set(place.nodes)) == 2
        master = logs[0].read_text().split()[2]
        assert master.startswith(f"{place.host}:")
        assert [log.read_text().split() for log in logs] == [[f"{i}/2", f"{i}/2", master, master] for i in (0, 1)]

    def test_nothing_of_this_package_is_needed_on_a_node(self, tmp_path: Path, ray_cluster_address: str) -> None:
        """The actor's class, as Ray ships it, works where the package cannot be imported."""
        ship = (
            "import sys; from ray import cloudpickle as p\n"
            "from pytest_areal_eval.schedulers import agent, supervise\n"
            "from pytest_areal_eval.schedulers.ray import node\n"
            "for m in (agent, supervise, node): p.register_pickle_by_value(m)\n"
            "open(sys.argv[1], 'wb').write(p.dumps(node.Node))"
        )
        use = (
            "import sys; sys.modules['pytest_areal_eval'] = None; from ray import cloudpickle as p\n"
            "node = p.loads(open(sys.argv[1], 'rb').read())(); text = open(sys.argv[2]).read()\n"
            "order = dict(argv=['sh', '-c', 'echo on {host}; exit 7'], env={}, values={'host': 'h'}, devices={},"
            " python='', supervise=text); node.launch(order)\n"
            "while (end := node.watch(0)[1]) is None: pass\n"
            "print(node.watch(0)[0].decode(), end['code']); node.stop(1)"
        )
        shipped, text = str(tmp_path / "node"), str(ROOT / "pytest_areal_eval/schedulers/supervise.py")
        subprocess.run([sys.executable, "-c", ship, shipped], check=True, timeout=60, cwd=ROOT)
        done = subprocess.run([sys.executable, "-c", use, shipped, text], capture_output=True, text=True, timeout=60)
        assert done.stdout.split() == ["on", "h", "supervise:", "the", "command", "ended", "with", "7", "7"], (
            done.stderr
        )


class TestCapacity:
    def test_what_can_never_fit_is_refused_in_seconds(self, scheduler: RayScheduler) -> None:
        scheduler.capacity()  # it is connected
        started = time.monotonic()
        for shape, says in [
            (Shape(gpus_per_node=5), "m/0 asks for 5 GPUs on one node; the largest node of the Ray cluster .* has 4"),
            (Shape(cpus_per_node=9), "m/0 asks for 9 CPUs on one node; .* has 8"),
            (Shape(mem_gb_per_node=1e6), r"m/0 asks for 1e\+06 GB of memory on one node"),
            (Shape(nodes=4), "m/0 asks for 4 nodes; .* has 3"),
        ]:
            with pytest.raises(CannotFit, match=says):
                scheduler.start(InstanceSpec("m/0", SLEEP, shape=shape))
        with pytest.raises(CannotFit, match=r"m/0 asks for 1 nodes?; .* has 0"):
            scheduler.start(InstanceSpec("m/0", SLEEP), exclude=cluster.NODES)
        assert time.monotonic() - started < 2

    def test_replicas_beyond_the_cluster_are_refused_before_any_runs(self, scheduler: RayScheduler) -> None:
        handles = [scheduler.start(InstanceSpec(f"m/{i}", SLEEP, shape=Shape(gpus_per_node=3))) for i in range(3)]
        with pytest.raises(CannotFit, match=r"m/3 does not fit beside 3 others .* 3 GPUs, and .* 12 GPUs on 3 nodes"):
            scheduler.start(InstanceSpec("m/3", SLEEP, shape=Shape(gpus_per_node=3)))
        assert State.UP not in {status.state for status in scheduler.poll(handles).values()}

    def test_what_does_not_fit_now_says_why_and_starts_when_it_does(
        self, scheduler: RayScheduler, connect: Connect
    ) -> None:
        """Somebody else has the GPUs."""
        somebody = connect()
        taken = [somebody.start(InstanceSpec(f"o/{i}", SLEEP, shape=Shape(gpus_per_node=3))) for i in range(3)]
        for handle in taken:
            until_up(somebody, handle)
        handle = scheduler.start(InstanceSpec("m/0", SERVER, shape=Shape(gpus_per_node=2)))
        says = "PENDING: wants 1 x (2 GPUs and 1 CPU); free: 127.0.2.1 1 of 4 GPUs, 7 of 8 CPUs; 127.0.2.2 1 of 4"
        until(lambda: says in status_of(scheduler, handle).reason, says, 3)
        somebody.stop(taken[:1])
        until_up(scheduler, handle)

    def test_where_an_autoscaler_may_add_nodes_it_waits(self, connect: Connect) -> None:
        one = connect(elastic=True)
        handle = one.start(InstanceSpec("m/0", SLEEP, shape=Shape(gpus_per_node=5)))
        status = status_of(one, handle)
        assert (status.state, status.never) == (State.WAITING, False)
        one.stop([handle])
        assert status_of(one, handle).lost is Lost.CANCELLED


class TestLosses:
    def test_a_killed_server_is_told_within_a_second(self, scheduler: RayScheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SERVER))
        nonce = until_up(scheduler, handle).nonce
        until(lambda: cluster.servers(nonce, "server.py"), "the server")
        os.kill(cluster.servers(nonce, "server.py")[0], signal.SIGKILL)
        started = time.monotonic()
        status = until_gone(scheduler, handle)
        assert time.monotonic() - started < 1
        assert (status.lost, status.exit_code) == (Lost.KILLED, -signal.SIGKILL)

    def test_a_hanging_server_is_killed_when_it_is_stopped(self, scheduler: RayScheduler) -> None:
        """SIGTERM does not reach a stopped process."""
        handle = scheduler.start(InstanceSpec("m/0", SERVER))
        place = until_up(scheduler, handle)
        nonce_at(place.host, place.port)
        os.kill(cluster.servers(place.nonce, "server.py")[0], signal.SIGSTOP)
        scheduler.stop([handle], grace_s=0.5)
        assert not processes.marked([place.nonce])

    def test_a_server_goes_with_its_actor(self, scheduler: RayScheduler, tmp_path: Path) -> None:
        """The out-of-memory killer takes an actor, and Ray leaves its children."""
        handle = scheduler.start(family(tmp_path / "pids"))
        nonce = until_up(scheduler, handle).nonce
        until(lambda: len(cluster.servers(nonce, "family.py")) == 2, "the server and its daemon")
        os.kill(cluster.actor_of(nonce), signal.SIGKILL)
        until(lambda: not processes.marked([nonce]), "the servers' end", 2)
        assert until_gone(scheduler, handle).lost is Lost.KILLED

    def test_a_group_that_somebody_removes_is_told(self, scheduler: RayScheduler, address: str) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SERVER))
        nonce = until_up(scheduler, handle).nonce
        remove = (
            "import ray, sys; from ray.util.placement_group import PlacementGroup, remove_placement_group\n"
            "ray.init(sys.argv[1], _node_ip_address='127.0.2.1', log_to_driver=False)\n"
            "remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(sys.argv[2]))))"
        )
        subprocess.run([sys.executable, "-c", remove, address, handle.id], check=True, timeout=60, capture_output=True)
        status = until_gone(scheduler, handle)
        assert status.lost is Lost.CANCELLED, status
        until(lambda: not processes.marked([nonce]), "the server's end", 2)

    def test_one_ranks_end_ends_the_others(self, scheduler: RayScheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SERVER, shape=Shape(nodes=2)))
        place = until_up(scheduler, handle)
        until(lambda: len(cluster.servers(place.nonce, "server.py")) == 2, "both ranks")
        os.kill(cluster.servers(place.nonce, "server.py")[1], signal.SIGKILL)
        status = until_gone(scheduler, handle, 5)
        assert status.lost is Lost.KILLED
        assert status.reason.startswith("rank ")
        until(lambda: not processes.marked([place.nonce]), "the other rank's end", 5)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_nothing_is_left_when_the_run_is_killed(self, number: signal.Signals, address: str, tmp_path: Path) -> None:
        """C92: not on any node."""
        with cluster.owner(tmp_path, address, 2, *SERVER) as owner:
            try:
                assert owner.stdout is not None
                nonces = owner.stdout.readline().decode().split()
                assert len(nonces) == 2
                until(lambda: all(cluster.servers(nonce, "server.py") for nonce in nonces), "the servers")
                owner.send_signal(number)
                owner.wait(15)
            finally:
                owner.kill()
        until(lambda: not processes.marked(nonces), "the servers' end", 3)

    def test_a_node_that_loses_its_power_is_told_and_not_used_again(
        self, scheduler: RayScheduler, address: str
    ) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SERVER), exclude=(cluster.NODES[0], cluster.NODES[2]))
        place = until_up(scheduler, handle)
        nonce_at(place.host, place.port)
        cluster.cut_power(cluster.NODES[1])
        until(lambda: not listens(place.host, place.port), "the end of the server's port", 1)
        again = scheduler.start(InstanceSpec("m/0", SERVER))
        assert until_gone(scheduler, handle).lost is Lost.NODE
        assert until_up(scheduler, again).host != place.host
        down = [(node.name, node.why_not) for node in scheduler.capacity().nodes if not node.usable]
        assert [name for name, _ in down] == [cluster.NODES[1]]


class Ask:
    """One question; the stand-in's answer holds 42."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        reply = await engine.chat([{"role": "user", "content": data["q"]}], max_new_tokens=64)
        return float("42" in reply.text)


class WholeNodes(StandinEngine):
    """Three replicas, each of which takes all CPUs of a node."""

    def launch(self, name: str, token: str) -> Launch | None:
        launch = super().launch(name, token)
        return launch and replace(launch, cpus=8)


class TestFleet:
    """The controller over this scheduler: a loss costs time, not an episode."""

    @contextmanager
    def running(self, scheduler: RayScheduler, engine: StandinEngine) -> Iterator[RolloutController]:
        self.events: list[Event] = []
        settings = ControllerSettings(max_concurrency=16, backoff_s=0.02, health_interval_s=0.2)
        controller = RolloutController(
            engine, scheduler, settings=settings, tokenizer=ByteTokenizer(), on_event=self.events.append
        )
        with controller:
            controller.initialize("role")
            until(lambda: controller.snapshot().replicas_ready == engine.replicas, "all replicas", 30)
            yield controller

    def rewards(self, controller: RolloutController) -> list[float]:
        return [rollout.reward for rollout in controller.rollout_batch([{"q": f"{i}?"} for i in range(300)], Ask())]

    def test_a_killed_server_is_started_again(self, scheduler: RayScheduler) -> None:
        with self.running(scheduler, StandinEngine(replicas=2, arguments=["--latency-ms", "50"])) as controller:
            nonce = next(one.nonce for one in scheduler._instances.values() if one.final is None)
            (server,) = cluster.servers(nonce, "standin/server.py")
            threading.Timer(0.2, os.kill, (server, signal.SIGKILL)).start()
            assert self.rewards(controller) == [1.0] * 300
            assert controller.snapshot().replicas_lost == 1
            until(lambda: controller.snapshot().replicas_ready == 2, "the second attempt", 20)
        assert "killed by SIGKILL" in next(event.text for event in self.events if event.kind == "lost")

    def test_a_lost_node_leaves_the_run_to_the_others(self, scheduler: RayScheduler, address: str) -> None:
        with self.running(scheduler, WholeNodes(replicas=3, arguments=["--latency-ms", "50"])) as controller:
            threading.Timer(0.2, cluster.cut_power, (cluster.NODES[2],)).start()
            assert self.rewards(controller) == [1.0] * 300
            snapshot = controller.snapshot()
            assert (snapshot.replicas_ready, snapshot.replicas_lost) == (2, 1)
            until(lambda: any("PENDING: wants 1 x" in event.text for event in self.events), "the reason", 20)


class TestConnecting:
    def test_who_listens_without_being_ray_is_given_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster_address: str
    ) -> None:
        monkeypatch.setattr(module, "CONNECT_LIMIT_S", 2.0)
        with socket.create_server(("127.0.2.9", 0)) as stranger:
            address = f"127.0.2.9:{stranger.getsockname()[1]}"
            one = cluster.scheduler(tmp_path, address)
            with pytest.raises(SchedulerError, match=f"Ray at {address} did not take this process in: .* 2 s"):
                one.capacity()
            one.close()

    def test_one_is_started_here_where_no_address_is_given(self, tmp_path: Path, ray_cluster_address: str) -> None:
        one = RayScheduler(log_dir=tmp_path / "logs")
        handle = one.start(InstanceSpec("m/0", SERVER))
        place = until_up(one, handle)
        assert nonce_at(place.host, place.port) == place.nonce
        assert one._driver is not None
        mark = one._driver._mark
        assert one._folder is not None
        assert len(processes.marked([mark])) > 3
        one.close()
        assert not processes.marked([mark, place.nonce])
        assert not Path(one._folder.name).exists()


@pytest.mark.timeout(180)
class TestForReal:
    """``pytest --scheduler=ray`` with the embedded engine and the shipped checkpoint."""

    def run(self, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "pytest", "evals/test_arithmetic.py", f"--results-dir={folder}", "-q"]
        words += ["-p", "no:cacheprovider", "--model=models/tiny-math", "--limit=40", "--greedy", *options]
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=80)

    def rewards(self, folder: Path) -> dict[str, float]:
        (journal,) = {path.resolve() for path in folder.glob("*/episodes.jsonl")}  # "latest" leads there too
        rows = [json.loads(line) for line in journal.read_text().splitlines()]
        return {row["item_id"]: row["reward"] for row in rows if "reward" in row}

    def test_three_replicas_on_ray_score_each_item_as_one_does_here(self, address: str, tmp_path: Path) -> None:
        there = self.run(tmp_path / "ray", "--scheduler=ray", f"--ray-address={address}", "--backend=hf:d3")
        assert there.returncode == 0, there.stdout + there.stderr
        here = self.run(tmp_path / "local", "--backend=hf:d1")
        assert here.returncode == 0, here.stdout + here.stderr
        assert len(self.rewards(tmp_path / "ray")) == 40
        assert self.rewards(tmp_path / "ray") == self.rewards(tmp_path / "local")

    def test_more_gpus_than_the_cluster_has_is_a_usage_error(self, address: str, tmp_path: Path) -> None:
        done = self.run(tmp_path, "--scheduler=ray", f"--ray-address={address}", "--backend=hf:d13")
        assert done.returncode == 4, done.stdout + done.stderr
        assert "12 GPUs on 3 nodes" in done.stdout + done.stderr


class TestLostHead:
    """Last, since all of the cluster goes with it."""

    def test_a_lost_head_ends_the_driver_but_not_this_process(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ray ends its driver's process when it does not find the head again; pytest must report what it has."""
        monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
        one = connect()
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
