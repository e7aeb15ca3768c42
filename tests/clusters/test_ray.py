"""The Ray scheduler on a real cluster of virtual nodes: the contract, and what happens when something is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray_cluster as cluster
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

from pytest_areal_eval.errors import CannotFit, SchedulerError
from pytest_areal_eval.schedulers import processes
from pytest_areal_eval.schedulers.base import InstanceSpec, Lost, Shape, State
from pytest_areal_eval.schedulers.ray import scheduler as module
from pytest_areal_eval.schedulers.ray.scheduler import RayScheduler

pytestmark = pytest.mark.timeout(90)
ROOT = Path(__file__).parents[2]
Connect = Callable[..., RayScheduler]


@pytest.fixture
def scheduler(connected: RayScheduler) -> Iterator[RayScheduler]:
    yield connected
    connected.stop([one.handle for one in connected._roster.all()])


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
            " python='', supervise=text, lease_s=60); node.launch(order)\n"
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
        says = "PENDING: wants 1 x (2 GPUs and 1 CPU); free: 198.18.8.11 1 of 4 GPUs, 7 of 8 CPUs; 198.18.8.12 1 of 4"
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
            "ray.init(sys.argv[1], _node_ip_address=sys.argv[1].partition(':')[0], log_to_driver=False)\n"
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

    def test_a_node_without_power_is_told_and_nothing_is_left_of_a_run_that_was_on_it(
        self, scheduler: RayScheduler, address: str, tmp_path: Path
    ) -> None:
        """C94: nobody there can tidy up."""
        node = cluster.NODES[2]
        handle = scheduler.start(InstanceSpec("m/0", SERVER), exclude=cluster.NODES[:2])
        place = until_up(scheduler, handle)
        nonce_at(place.host, place.port)
        with cluster.owner_on(node, tmp_path, address, 3, *SERVER) as owner:
            assert owner.stdout is not None
            nonces = owner.stdout.readline().decode().split()
            assert len(nonces) == 3
            until(lambda: all(cluster.servers(nonce, "server.py") for nonce in nonces), "the servers")
            cluster.cut_power(node)
            until(lambda: not listens(place.host, place.port), "the end of the server's port", 1)
            owner.wait(5)
        again = scheduler.start(InstanceSpec("m/0", SERVER))
        assert until_gone(scheduler, handle).lost is Lost.NODE
        assert until_up(scheduler, again).host != place.host
        assert not [one for one in scheduler.capacity().nodes if one.usable and one.name == node]
        until(lambda: not processes.marked(nonces), "the servers' end on the other nodes", 20)


class TestConnecting:
    def test_who_listens_without_being_ray_is_given_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster_address: str
    ) -> None:
        monkeypatch.setattr(module, "CONNECT_LIMIT_S", 0.5)
        monkeypatch.setattr("pytest_areal_eval.schedulers.ray.connection.GRACE_S", 0.2)
        with socket.create_server(("127.0.2.9", 0)) as stranger:
            address = f"127.0.2.9:{stranger.getsockname()[1]}"
            one = cluster.scheduler(tmp_path, address)
            with pytest.raises(SchedulerError, match=f"Ray at {address} did not take this process in: .* 0.5 s"):
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
