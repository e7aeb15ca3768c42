"""The Slurm scheduler on a real cluster of virtual nodes: the contract, and what happens when something is lost."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm_cluster as cluster
from support.scheduler_contract import (
    PROGRAMS,
    SERVER,
    SLEEP,
    SchedulerContract,
    nonce_at,
    shell,
    status_of,
    until_gone,
    until_up,
)
from support.waiting import until

from pytest_areal_eval.errors import CannotFit, ConfigError, SchedulerError
from pytest_areal_eval.schedulers import processes
from pytest_areal_eval.schedulers.base import InstanceSpec, Lost, Shape, State
from pytest_areal_eval.schedulers.rendezvous import Rendezvous
from pytest_areal_eval.schedulers.slurm import SlurmScheduler, commands, jobs

pytestmark = [pytest.mark.usefixtures("three_nodes"), pytest.mark.timeout(90)]
FOUR_GPUS = Shape(gpus_per_node=4)


@pytest.fixture(scope="module")
def three_nodes(slurm: None) -> None:
    cluster.start("--nodes", "3", "--gpus", "8")


@pytest.fixture
def scheduler() -> Iterator[SlurmScheduler]:
    one = cluster.scheduler()
    yield one
    one.close()
    assert cluster.jobs() == []


class TestContract(SchedulerContract):
    """A job for each instance."""

    nodes = 3
    gpus_per_node = 8


class TestPlaces:
    def test_two_replicas_share_a_node_without_sharing_a_gpu(self, scheduler: SlurmScheduler) -> None:
        handles = [scheduler.start(InstanceSpec(f"m/{i}", SERVER, shape=FOUR_GPUS)) for i in range(3)]
        places = [until_up(scheduler, handle) for handle in handles]
        held = [(place.nodes[0], gpu) for place in places for gpu in place.gpus[0]]
        assert len(set(held)) == 12
        assert {place.host for place in places} == {"127.0.0.11", "127.0.0.12"}
        assert sum(node.gpus_free for node in scheduler.capacity().nodes) in (12, 24)  # asked up to 10 s ago

    def test_a_replica_over_two_nodes_is_one_job_whose_ranks_meet(self, scheduler: SlurmScheduler) -> None:
        line = "echo $NODE_RANK/$NNODES {rank}/{nnodes} $MASTER_ADDR:$MASTER_PORT {master_addr}:{master_port}"
        spec = InstanceSpec("m/0", ("sh", "-c", f"{line}; exec sleep 300"), shape=Shape(nodes=2, gpus_per_node=8))
        handle = scheduler.start(spec)
        logs = [Path(scheduler.log_path(handle)), Path(scheduler.log_path(handle).replace(".log", ".1.log"))]
        until(lambda: all(log.exists() and log.read_text() for log in logs), "both ranks", 20)
        place = until_up(scheduler, handle)
        assert len(set(place.nodes)) == 2
        master = logs[0].read_text().split()[2]
        assert master.startswith(f"{place.host}:")
        assert [log.read_text().split() for log in logs] == [[f"{i}/2", f"{i}/2", master, master] for i in (0, 1)]

    def test_a_server_is_not_told_of_the_job_around_it(self, scheduler: SlurmScheduler) -> None:
        """Engines derive their ranks from a job's variables, MPI its launcher."""
        handle = scheduler.start(shell("env; pwd", MINE="2"))
        until_gone(scheduler, handle, 20)
        seen = scheduler.log_tail(handle, 1000)
        assert "MINE=2" in seen
        assert not [line for line in seen.splitlines() if line.startswith(("SLURM", "SUBMITIT", "PMI", "PYTEST"))]
        assert "CUDA_VISIBLE_DEVICES=\n" in seen

    def test_options_reach_sbatch_setup_lines_and_the_prefix_the_server(self) -> None:
        one = cluster.scheduler(
            partition="high",
            time="7",
            sbatch_args=("--comment=for eval", "nice=3"),
            setup=("export FROM_SETUP=yes", "echo setting up"),
            prefix=("env", "FROM_PREFIX=yes"),
        )
        handle = one.start(shell("echo $FROM_SETUP $FROM_PREFIX; exec sleep 300"))
        until(lambda: "yes" in one.log_tail(handle), "the server's line", 20)
        shown = cluster.slurm("scontrol", "show", "job", handle.id)
        assert one.log_tail(handle).splitlines()[0] == "yes yes"
        for part in ("Partition=high", "TimeLimit=00:07:00", "Comment=for eval", "Requeue=0", "Nice=3"):
            assert part in shown
        one.close()

    def test_the_token_lies_in_a_file_that_only_its_user_can_read(self, scheduler: SlurmScheduler) -> None:
        handle = scheduler.start(shell("sleep 300", API_KEY="sesame"))
        until_up(scheduler, handle)
        folder = Path(scheduler.log_path(handle)).parents[1]
        holding = [path for path in folder.rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]
        assert [path.stat().st_mode & 0o077 for path in holding] == [0]
        scheduler.close()
        assert not holding[0].exists()


class TestFaults:
    def test_a_killed_server_is_told_at_once_and_its_job_ends(self, scheduler: SlurmScheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SERVER))
        place = until_up(scheduler, handle)
        nonce_at(place.host, place.port)
        began = time.monotonic()
        for pid in processes.marked([place.nonce]):
            if b"server.py" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[3]:
                os.kill(pid, signal.SIGKILL)
        status = until_gone(scheduler, handle)
        assert time.monotonic() - began < 2
        assert (status.lost, status.exit_code) == (Lost.KILLED, -9)
        until(lambda: cluster.jobs() == [], "the job's end")

    def test_a_killed_agent_takes_its_server_along(self, scheduler: SlurmScheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SERVER))
        place = until_up(scheduler, handle)
        nonce_at(place.host, place.port)
        for stat in Path("/proc").glob("[0-9]*/cmdline"):
            words = stat.read_bytes().split(b"\0")
            if any(word.endswith(b"agent.py") for word in words) and any(b"m_0-1.json" in word for word in words):
                os.kill(int(stat.parent.name), signal.SIGKILL)
        assert until(lambda: not processes.marked([place.nonce]), "the server's end") < 2
        assert until_gone(scheduler, handle).lost is Lost.EXITED

    def test_a_job_that_somebody_cancels_is_told_so(self, scheduler: SlurmScheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SERVER))
        place = until_up(scheduler, handle)
        cluster.slurm("scancel", handle.id)
        assert until_gone(scheduler, handle).lost is Lost.CANCELLED
        assert not processes.marked([place.nonce])

    def test_a_preempted_job_is_told_so_and_not_queued_again(self, scheduler: SlurmScheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SERVER, shape=Shape(gpus_per_node=8)))
        until_up(scheduler, handle)
        urgent = cluster.scheduler(partition="high")
        others = [urgent.start(InstanceSpec(f"u/{i}", SLEEP, shape=Shape(gpus_per_node=8))) for i in range(3)]
        assert until_gone(scheduler, handle, 15).lost is Lost.PREEMPTED
        for other in others:
            until_up(urgent, other)
        assert handle.id not in cluster.jobs()
        urgent.close()

    def test_one_rank_of_two_ends_the_whole_instance(self, scheduler: SlurmScheduler) -> None:
        spec = InstanceSpec("m/0", ("sh", "-c", "echo {rank}; exec sleep 300"), shape=Shape(nodes=2, gpus_per_node=4))
        handle = scheduler.start(spec)
        place = until_up(scheduler, handle)
        until(lambda: len(sleeping(place.nonce)) == 2, "both ranks")
        os.kill(sleeping(place.nonce)[1], signal.SIGKILL)
        status = until_gone(scheduler, handle, 5)
        assert status.lost is Lost.KILLED
        assert "rank" in status.reason
        until(lambda: not processes.marked([place.nonce]), "the other rank's end", 5)

    def test_a_port_taken_meanwhile_is_tried_again_on_the_node(self, scheduler: SlurmScheduler, tmp_path: Path) -> None:
        port = tmp_path / "port"
        taken = f"test -e {port} || {{ echo {{port}} > {port}; echo Address already in use; exit 1; }}"
        handle = scheduler.start(InstanceSpec("m/0", ("sh", "-c", f'{taken}; exec "$@"', "sh", *SERVER)))
        until_up(scheduler, handle)
        until(port.exists, "the first try")
        until(lambda: until_up(scheduler, handle).port != int(port.read_text()), "another port")
        place = until_up(scheduler, handle)
        assert nonce_at(place.host, place.port) == place.nonce

    def test_without_slurmctld_a_poll_is_an_error_the_servers_go_on_and_it_comes_back(
        self, scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(commands, "LIMIT_S", 3.0)
        handle = scheduler.start(InstanceSpec("m/0", SERVER))
        place = until_up(scheduler, handle)
        nonce_at(place.host, place.port)
        os.kill(int((cluster.FOLDER / "run" / "slurmctld.pid").read_text()), signal.SIGTERM)
        try:
            time.sleep(jobs.QUERY_PAUSE_S)  # what squeue said last is good for so long
            with pytest.raises(SchedulerError, match=r"squeue .* (failed|gave no answer)"):
                status_of(scheduler, handle)
            assert nonce_at(place.host, place.port) == place.nonce
        finally:
            cluster.slurm("slurmctld")
            until(lambda: subprocess.run(["scontrol", "ping"], capture_output=True).returncode == 0, "slurmctld", 20)
        assert status_of(scheduler, handle).state is State.UP


class TestWaiting:
    def test_what_a_job_waits_for_is_said_with_what_is_free(self, scheduler: SlurmScheduler) -> None:
        handles = [scheduler.start(InstanceSpec(f"m/{i}", SLEEP, shape=Shape(gpus_per_node=8))) for i in range(3)]
        for handle in handles:
            until_up(scheduler, handle)
        other = cluster.scheduler()
        waiting = other.start(InstanceSpec("n/0", SLEEP, shape=Shape(gpus_per_node=1)))
        until(lambda: "Resources" in status_of(other, waiting).reason, "Slurm's reason", 20)
        status = status_of(other, waiting)
        assert status.state is State.WAITING
        assert "PENDING Resources, the default partition has 0 of 24 GPUs free" in status.reason
        other.stop([waiting])
        assert status_of(other, waiting).lost is Lost.CANCELLED
        other.close()

    def test_more_gpus_in_all_than_there_are_is_refused(self, scheduler: SlurmScheduler) -> None:
        for i in range(3):
            scheduler.start(InstanceSpec(f"m/{i}", SLEEP, shape=Shape(gpus_per_node=8)))
        with pytest.raises(CannotFit, match=r"m/3 asks for 1 GPUs beside the 24 that this run has; .* has 24"):
            scheduler.start(InstanceSpec("m/3", SLEEP, shape=Shape(gpus_per_node=1)))

    def test_what_sbatch_refuses_is_told_in_its_words(self) -> None:
        one = cluster.scheduler(constraint="h100")
        said = r"Slurm refuses m/0 \(0 GPUs, CPUs: 1\) with --slurm-constraint=h100: .*Invalid feature"
        with pytest.raises(CannotFit, match=said):
            one.start(InstanceSpec("m/0", SLEEP))
        one.close()

    def test_an_unknown_partition_is_told_with_those_that_there_are(self) -> None:
        one = cluster.scheduler(partition="gpu")
        with pytest.raises(ConfigError, match="no partition gpu\nThere are: high, main"):
            one.start(InstanceSpec("m/0", SLEEP))
        one.close()

    def test_a_machine_without_slurm_is_told_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="--scheduler=slurm: no sbatch on PATH"):
            cluster.scheduler()

    def test_a_missing_submitit_is_told_with_its_installation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"submitit is not installed .*\nInstall it: pip install"):
            cluster.scheduler()

    def test_a_short_option_of_sbatch_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"--slurm-sbatch-arg=-N2: not the long form"):
            cluster.scheduler(sbatch_args=("-N2",))

    def test_a_shared_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        one = SlurmScheduler(shared_dir=tmp_path / "file")
        with pytest.raises(ConfigError, match=r"/file/areal-eval-\w+ cannot be written.*\n.*--shared-dir"):
            one.start(InstanceSpec("m/0", SLEEP))
        one.close()


class TestSharedFolder:
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Path]:
        """A file system of 64 kB."""
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True, timeout=10)
        yield disk
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=10)

    def test_one_that_is_full_or_read_only_is_named(self, disk: Path) -> None:
        fill(disk)
        with pytest.raises(ConfigError, match=r"/disk/a cannot be written: .*No space left.*\n.*--shared-dir"):
            Rendezvous(disk / "a", 60, 1).open()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=10)
        with pytest.raises(ConfigError, match=r"/disk/b cannot be written: .*Read-only file system.*\n.*--shared-dir"):
            Rendezvous(disk / "b", 60, 1).open()

    def test_one_that_fills_up_is_told_before_the_servers_end(self, disk: Path) -> None:
        shared = Rendezvous(disk / "a", lease_s=1.0, grace_s=1.0)
        shared.open()
        assert shared.events() == {}
        fill(disk)
        with pytest.raises(
            SchedulerError, match=r"lease in .*/disk/a cannot be rewritten .*No space left.* within 1 s"
        ):
            until(lambda: shared.events() is None, "a trouble", 3)
        shared.close()


def fill(disk: Path) -> None:
    """Write until there is no room, not even for a byte."""
    with contextlib.suppress(OSError), open(disk / "rest", "wb", buffering=0) as file:
        while file.write(bytes(1024)):
            pass


class TestNothingIsLeft:
    def test_a_run_that_ends_by_itself_leaves_nothing(self) -> None:
        with cluster.owner(2, *SERVER) as owner:
            nonces = started(owner)
            owner.send_signal(signal.SIGINT)
            owner.wait(15)
        assert not processes.marked(nonces)
        assert cluster.jobs() == []

    def test_the_lease_ends_what_a_killed_run_leaves(self) -> None:
        """C92, C94: the machine that pytest ran on may be gone as well."""
        with cluster.owner(2, *SERVER) as owner:
            nonces = started(owner)
            owner.send_signal(signal.SIGKILL)
            owner.wait(15)
        until(lambda: not processes.marked(nonces), "the servers' end", cluster.LEASE_S + 3)
        until(lambda: cluster.jobs() == [], "the jobs' end", 3)

    def test_a_fork_closes_nothing(self, scheduler: SlurmScheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SLEEP))
        pid = os.fork()
        if pid == 0:
            scheduler.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert until_up(scheduler, handle)


class TestInsideAnAllocation:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_steps_share_the_allocation_without_sharing_a_gpu(self, number: signal.Signals) -> None:
        words = ["salloc", "-Q", "-N2", "--gpus-per-node=8", "-c4", "--ntasks-per-node=1", sys.executable]
        words += [str(PROGRAMS / "slurm_owner.py"), str(cluster.SHARED / "within"), "3", "4", "10", *SERVER]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as salloc:
            try:
                assert salloc.stdout is not None
                told = json.loads(salloc.stdout.readline())
                assert len({(node, gpu) for _, node, gpus in told for gpu in gpus}) == 12
                assert len(cluster.jobs()) == 1
                children = Path(f"/proc/{salloc.pid}/task/{salloc.pid}/children").read_text().split()
                os.kill(int(children[0]), number)
                nonces = [nonce for nonce, _, _ in told]
                until(lambda: not processes.marked(nonces), "the servers' end", 5)
            finally:
                salloc.send_signal(signal.SIGTERM)
                salloc.wait(10)

    def test_the_cpus_of_all_replicas_are_counted_before_any_waits_for_them(self) -> None:
        code = (
            "import sys; from pathlib import Path\n"
            "from pytest_areal_eval.controller.placement import Placement\n"
            "from pytest_areal_eval.controller.settings import Needs\n"
            "from pytest_areal_eval.engines.base import Launch\n"
            "from pytest_areal_eval.schedulers.slurm import SlurmScheduler\n"
            "scheduler = SlurmScheduler(shared_dir=Path(sys.argv[1]))\n"
            "Placement(scheduler, Needs(cpus_per_gpu=3)).check([Launch(('true',), gpus=1)] * 3)"
        )
        words = ["salloc", "-Q", "-N2", "--gpus-per-node=2", "-c4", "--ntasks-per-node=1", sys.executable, "-c", code]
        done = subprocess.run([*words, str(cluster.SHARED / "few")], capture_output=True, text=True, timeout=20)
        assert "CannotFit: 3 replicas of 3 CPUs do not fit: the slurm scheduler has 8 CPUs on 2 nodes" in done.stderr
        assert "room for 2" in done.stderr

    def test_a_part_that_is_more_than_the_allocation_cannot_fit(self) -> None:
        code = (
            "import sys; from pathlib import Path\n"
            "from pytest_areal_eval.schedulers.slurm import SlurmScheduler\n"
            "from pytest_areal_eval.schedulers.base import InstanceSpec, Shape\n"
            "spec = InstanceSpec('m/0', ('true',), shape=Shape(gpus_per_node=4))\n"
            "SlurmScheduler(shared_dir=Path(sys.argv[1])).start(spec)"
        )
        words = ["salloc", "-Q", "-N1", "--gpus-per-node=2", sys.executable, "-c", code, str(cluster.SHARED / "small")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
        assert "CannotFit: m/0 asks for 4 GPUs on a node; the largest of the allocation" in done.stderr
        assert "has 2" in done.stderr


def started(owner: subprocess.Popen[bytes]) -> list[str]:
    assert owner.stdout is not None
    nonces = [nonce for nonce, _, _ in json.loads(owner.stdout.readline())]
    assert processes.marked(nonces)
    return nonces


def sleeping(nonce: str) -> list[int]:
    return [pid for pid in processes.marked([nonce]) if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]
