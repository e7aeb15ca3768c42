"""What can be said of the Slurm scheduler without a cluster: what Slurm prints becomes values, and what a node does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_areal_eval.errors import CannotFit, ConfigError, SchedulerError
from pytest_areal_eval.schedulers import agent
from pytest_areal_eval.schedulers.base import InstanceSpec, Lost, Shape
from pytest_areal_eval.schedulers.rendezvous import Rendezvous
from pytest_areal_eval.schedulers.slurm import SlurmOptions, SlurmScheduler, commands
from pytest_areal_eval.schedulers.slurm.jobs import Jobs
from pytest_areal_eval.schedulers.slurm.options import PROGRAMS
from pytest_areal_eval.schedulers.slurm.steps import Steps

Prints = Callable[[str, str], None]


@pytest.fixture
def prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prints:
    """Make a program of Slurm's print something."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(program: str, text: str) -> None:
        (tmp_path / f"{program}.txt").write_text(text)
        (tmp_path / program).write_text(f"#!/bin/sh\ncat {tmp_path}/{program}.txt\n")
        (tmp_path / program).chmod(0o755)

    make("scontrol", "SelectTypeParameters    = CR_CORE_MEMORY\n")
    return make


class TestCommands:
    @pytest.mark.parametrize(
        ("gres", "count"),
        [
            ("gpu:8", 8),
            ("gpu:h100:4(S:0-1),gpu:a100:2", 6),
            ("gpu:h100:3(IDX:0-2),shard:4", 3),
            ("(null)", 0),
            ("gpu:0", 0),
            ("nic:2", 0),
        ],
    )
    def test_gpus_are_counted_in_gres(self, gres: str, count: int) -> None:
        assert commands.gpus_in(gres) == count

    def test_nodes_are_those_of_the_default_partition_each_once(self, prints: Prints) -> None:
        prints(
            "sinfo",
            "main*|n1|mixed|gpu:h100:8(S:0-1)|gpu:h100:3(IDX:0-2)|4/12/0/16|NO|64000|\n"
            "main*|n2|drained*|gpu:h100:8(S:0-1)|gpu:h100:0(IDX:N/A)|4/12/0/16|NO|64000|\n"
            "long|n1|mixed|gpu:h100:8(S:0-1)|gpu:h100:3(IDX:0-2)|4/12/0/16|NO|64000|\n"
            "long|n3|idle~|gpu:h100:4|gpu:h100:0|4/12/0/16|NO|64000|\n",
        )
        nodes = [(node.name, node.gpus_total, node.gpus_free, node.usable) for node in commands.nodes_of(None)]
        assert nodes == [("n1", 8, 5, True), ("n2", 8, 0, False)]
        assert [node.gpus_free for node in commands.nodes_of("main,long")] == [5, 0, 4]
        with pytest.raises(ConfigError, match=r"no partition gpu\nThere are: long, main\."):
            commands.nodes_of("gpu")

    def test_an_allocation_has_its_part_of_each_node(self) -> None:
        job = (
            "   NumNodes=3 NumCPUs=24 NumTasks=2 CPUs/Task=4 ReqB:S:C:T=0:0:*:*\n"
            "     Nodes=node[1-2] CPU_IDs=0-2,8-12 Mem=65536 GRES=gpu:h100:8(IDX:0-7)\n"
            "     Nodes=node7 CPU_IDs=3 Mem=0 GRES=\n"
            "   MinCPUsNode=4 MinMemoryNode=3000M MinTmpDiskNode=0\n"
        )
        parts = [(part.name, part.gpus_total, part.cpus_total, part.mem_gb_total) for part in commands.parts_in(job)]
        assert parts == [("node[1-2]", 8, 8, 64), ("node7", 0, 1, None)]

    def test_cpus_and_memory_are_counted_as_slurm_reserves_them(self, prints: Prints) -> None:
        prints(
            "sinfo",
            "main*|n1|mixed|gpu:8|gpu:0|4/12/0/16|NO|64512|\n"
            "main*|n2|drained|gpu:8|gpu:0|0/0/16/16|NO|64512|\n"
            "main*|n3|idle|(null)|gpu:0|0/16/0/16|FORCE:4|64512|\n",
        )
        found = [(one.cpus_total, one.cpus_free, one.cpu_share, one.mem_gb_total) for one in commands.nodes_of(None)]
        assert found == [(16, 12, 1, 63.0), (16, 0, 1, 63.0), (16, 16, 4, 63.0)]
        prints("scontrol", "SelectTypeParameters    = CR_CPU\n")
        assert {node.mem_gb_total for node in commands.nodes_of(None)} == {None}

    def test_more_memory_than_a_node_has_is_refused_with_what_to_type(self, prints: Prints, tmp_path: Path) -> None:
        for program in PROGRAMS:
            prints(program, "")
        prints("sinfo", "main*|n1|idle|gpu:8|gpu:0|0/16/0/16|NO|64512|\n")
        prints("scontrol", "SelectTypeParameters    = CR_CPU_MEMORY\n")
        spec = InstanceSpec("m/0", ("true",), shape=Shape(mem_gb_per_node=80.0))
        with pytest.raises(CannotFit, match=r"m/0 asks for 80 GB on a node; .* has 63\.\n.* --server-mem=GB"):
            SlurmScheduler(shared_dir=tmp_path).start(spec)

    def test_a_cluster_without_a_default_partition_is_told(self, prints: Prints) -> None:
        prints("sinfo", "main|n1|idle|gpu:8|gpu:0|4/12/0/16|NO|64000|\n")
        with pytest.raises(ConfigError, match=r"no default partition\.\nName one: --slurm-partition=NAME .* main"):
            commands.nodes_of(None)

    def test_a_reason_may_hold_spaces_and_bars(self, prints: Prints) -> None:
        prints("squeue", "7|PENDING||N/A|Nodes required for job are DOWN, DRAINED | or reserved\n")
        assert commands.squeue(["7"])["7"].reason == "Nodes required for job are DOWN, DRAINED | or reserved"

    def test_a_program_that_never_answers_is_an_error(self, prints: Prints, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commands, "LIMIT_S", 0.2)
        with pytest.raises(SchedulerError, match=r"sleep 5 gave no answer in 0\.2 s"):
            commands.run("sleep", "5")


class TestJobs:
    @pytest.mark.parametrize(
        ("line", "state", "never", "lost"),
        [
            ("PENDING||2026-01-01T10:00:00|Priority", "waiting", False, None),
            ("PENDING||N/A|PartitionNodeLimit", "waiting", True, None),
            ("PENDING||N/A|QOSMaxGRESPerJob", "waiting", True, None),
            ("PENDING||N/A|AssocMaxWallDurationPerJobLimit", "waiting", True, None),
            ("PENDING||N/A|QOSMaxGRESPerUser", "waiting", False, None),
            ("CONFIGURING|n1|N/A|None", "waiting", False, None),
            ("RUNNING|n1|N/A|None", "running", False, None),
            ("COMPLETING|n1|N/A|None", "running", False, None),
            ("OUT_OF_MEMORY|n1|N/A|OutOfMemory", "gone", False, Lost.OOM),
            ("NODE_FAIL|n1|N/A|NodeDown", "gone", False, Lost.NODE),
            ("BOOT_FAIL|n1|N/A|None", "gone", False, Lost.NODE),
        ],
    )
    def test_each_state_of_a_job_has_its_meaning(
        self, line: str, state: str, never: bool, lost: Lost | None, prints: Prints, tmp_path: Path
    ) -> None:
        prints("squeue", f"7|{line}\n")
        prints("sinfo", "main*|n1|mixed|gpu:8|gpu:5|4/12/0/16|NO|64000|\n")
        seen = Jobs(SlurmOptions(), tmp_path, "run").look(["7"], anew=False)["7"]
        assert (seen.state, seen.never, seen.lost) == (state, never, lost)
        if state == "waiting":
            assert "the default partition has 3 of 8 GPUs free" in seen.reason
        assert ("expected to start at 2026-01-01T10:00:00" in seen.reason) == ("2026" in line)

    def test_slurm_is_asked_again_at_once_where_an_agent_has_told_of_an_end(
        self, prints: Prints, tmp_path: Path
    ) -> None:
        jobs = Jobs(SlurmOptions(), tmp_path, "run")
        prints("squeue", "7|RUNNING|n1|N/A|None\n")
        assert jobs.look(["7"], anew=False)["7"].state == "running"
        prints("squeue", "7|CANCELLED|n1|N/A|None\n")
        assert jobs.look(["7"], anew=False)["7"].state == "running"
        assert jobs.look(["7"], anew=True)["7"].lost is Lost.CANCELLED

    @pytest.mark.parametrize(
        ("line", "state", "lost"),
        [
            ("", "waiting", Lost.UNKNOWN),
            ("7|RUNNING|n1|N/A|None\n", "running", Lost.UNKNOWN),
            ("7|PREEMPTED|n1|N/A|None\n", "gone", Lost.PREEMPTED),
        ],
    )
    def test_a_job_that_slurm_has_forgotten_is_gone_after_a_minute(
        self, line: str, state: str, lost: Lost, prints: Prints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without an accounting database nobody else could be asked."""
        prints("sinfo", "main*|n1|mixed|gpu:8|gpu:5|4/12/0/16|NO|64000|\n")
        prints("squeue", line)
        jobs = Jobs(SlurmOptions(), tmp_path, "run")
        assert jobs.look(["7"], anew=True)["7"].state == state
        prints("squeue", "")
        assert jobs.look(["7"], anew=True)["7"].state == state
        monkeypatch.setattr("pytest_areal_eval.schedulers.slurm.jobs.FORGOTTEN_S", -1)
        assert jobs.look(["7"], anew=True)["7"].lost is lost


class TestSteps:
    @pytest.mark.parametrize("state", ["", "JobId=7 JobState=COMPLETED"])
    def test_an_allocation_that_has_ended_is_told(self, state: str, prints: Prints, tmp_path: Path) -> None:
        prints("scontrol", state)
        with pytest.raises(
            ConfigError, match=r"SLURM_JOB_ID=7: no allocation of that id runs any more\nMake a new one"
        ):
            Steps("7", tmp_path, "run").nodes()

    def test_a_step_that_srun_refuses_for_good_is_not_tried_again(self, tmp_path: Path) -> None:
        steps = Steps("7", tmp_path, "run")
        steps._sruns["1"] = subprocess.Popen(["false"])
        steps._outputs["1"] = tmp_path / "out"
        steps._outputs["1"].write_text("srun: error: Unable to create step: More processors requested than permitted\n")
        steps._sruns["1"].wait()
        assert steps.look(["1"], anew=False)["1"].never


class TestAgent:
    def test_an_address_is_never_one_that_every_machine_has(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Debian writes a machine's own name beside 127.0.1.1 into /etc/hosts."""
        known = {"n1": "127.0.1.1", "login": "127.0.0.1", "n2": "10.0.0.2"}
        monkeypatch.setattr(socket, "gethostbyname", known.__getitem__)
        assert agent.own_address("n2", "login") == "10.0.0.2"
        with pytest.raises(agent.Refusal, match=r"n1 knows itself and login only as 127\.0\.0\.1"):
            agent.own_address("n1", "login")

    def test_ports_of_one_draw_differ_and_nobody_listens_there(self) -> None:
        found = agent.free_ports("127.0.0.1", 50)
        assert len(set(found)) == 50
        for port in found:
            with socket.create_server(("127.0.0.1", port)):
                assert port in agent.PORTS

    @pytest.fixture
    def shared(self, tmp_path: Path) -> Rendezvous:
        one = Rendezvous(tmp_path / "run", lease_s=1.0, grace_s=2.0)
        one.open()
        return one

    def run(self, shared: Rendezvous, text: str, **env: str) -> int:
        spec = InstanceSpec("m/0", ("sh", "-c", text))
        words = [sys.executable, *shared.invite("m_0-1", spec, "n0nce", own_job=True)]
        here = {**os.environ, "SLURMD_NODENAME": "localhost", **env}
        return subprocess.run(words, env=here, timeout=20).returncode

    def test_a_server_is_published_and_its_end_told(self, shared: Rendezvous) -> None:
        assert self.run(shared, "echo {host}:{port} {nonce}; exit 3") == 3
        events = shared.events()["m_0-1"]
        place = shared.address("m_0-1", "n0nce", events)
        assert place is not None
        assert Path(place.log_path).read_text().splitlines()[0] == f"{place.host}:{place.port} n0nce"
        (end,) = (event for event in events if event.kind == "end")
        assert (end.facts["why"], end.facts["code"]) == ("exited", 3)
        shared.close()

    def test_a_requeued_job_runs_nothing(self, shared: Rendezvous, tmp_path: Path) -> None:
        assert self.run(shared, f"touch {tmp_path}/ran", SLURM_RESTART_COUNT="1") == 1
        (end,) = shared.events()["m_0-1"]
        assert "requeued" in end.facts["error"]
        assert not (tmp_path / "ran").exists()
        shared.close()

    def test_a_server_ends_when_the_lease_stands_still(self, shared: Rendezvous) -> None:
        shared._ended.set()
        assert self.run(shared, "exec sleep 300") == 1
        (end,) = (event for event in shared.events()["m_0-1"] if event.kind == "end")
        assert end.facts["why"] == "lease"
        assert 1 <= end.facts["seconds"] < 5
        shared.close()

    def test_an_event_half_written_is_not_read(self, shared: Rendezvous) -> None:
        (shared.folder / "events" / "m_0-1.0.up1.json.new").write_text('{"kind": ')
        assert shared.events() == {}
        facts = {"kind": "up", "rank": 0, "node": "n1", "try": 1, "host": "n1", "port": 1, "gpus": "3,4"}
        (shared.folder / "events" / "m_0-1.0.up1.json").write_text(json.dumps(facts))
        place = shared.address("m_0-1", "n", shared.events()["m_0-1"])
        assert place is not None
        assert place.gpus == (("3", "4"),)
        shared.close()

    def test_a_folder_that_somebody_has_removed_does_not_keep_the_scheduler_from_closing(
        self, shared: Rendezvous
    ) -> None:
        shutil.rmtree(shared.folder)
        shared.close()

    def test_a_lease_that_cannot_be_written_is_told(self, shared: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared, "_trouble", OSError("No space left on device"))
        shared._ended.set()
        with pytest.raises(SchedulerError, match=r"cannot be rewritten .No space left on device.; the servers end"):
            shared.events()
        shared.close()
