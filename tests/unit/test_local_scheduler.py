"""The local scheduler: the contract, and what only it promises."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support.scheduler_contract import (
    PROGRAMS,
    PYTHON,
    SERVER,
    SLEEP,
    SchedulerContract,
    shell,
    status_of,
    until_gone,
)
from support.waiting import pids_in, until

from pytest_areal_eval.errors import CannotFit, ConfigError, SchedulerError
from pytest_areal_eval.schedulers import gpus, locks, nvidia, ports, postmortem, processes, supervise
from pytest_areal_eval.schedulers.base import Handle, InstanceSpec, Lost, Shape, State
from pytest_areal_eval.schedulers.local import LocalScheduler

TWO_GPUS = """GPU 0: NVIDIA H200 (UUID: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6)
GPU 1: NVIDIA H200 (UUID: GPU-1c2f0a11-0000-4106-c12f-20bd9faed9f6)
"""
SLICES = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-a0)
  MIG 3g.20gb     Device  1: (UUID: MIG-a1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-cccc)
  MIG 7g.40gb     Device  0: (UUID: MIG-c0)
"""


def make_local(folder: Path, devices: tuple[str, ...] | None = ()) -> LocalScheduler:
    (folder / "locks").mkdir(exist_ok=True)
    return LocalScheduler(log_dir=folder / "logs", gpus=devices, lock_dir=folder / "locks")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[LocalScheduler]:
    one = make_local(tmp_path)
    yield one
    one.close()


@pytest.fixture
def on_two_gpus(tmp_path: Path) -> Iterator[LocalScheduler]:
    one = make_local(tmp_path, ("0", "1"))
    yield one
    one.close()


class TestContract(SchedulerContract):
    """The local scheduler keeps it."""


class TestEnvironment:
    def test_a_server_inherits_all_but_what_is_this_processs_own(
        self, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
        monkeypatch.setenv("COVERAGE_PROCESS_START", "x")
        handle = scheduler.start(shell("env; echo stdin: $(readlink /proc/self/fd/0)", MINE="2"))
        until_gone(scheduler, handle)
        seen = scheduler.log_tail(handle, 1000)
        assert "HF_HUB_OFFLINE=1" in seen
        assert "MINE=2" in seen
        assert "PYTEST_" not in seen
        assert "COVERAGE_" not in seen
        assert "stdin: /dev/null" in seen

    def test_a_secret_is_passed_but_never_shown(self, scheduler: LocalScheduler) -> None:
        handle = scheduler.start(shell('test "$API_KEY" = sesame && echo "args: $API_KEY"; exit 1', API_KEY="sesame"))
        status = until_gone(scheduler, handle)
        assert status.reason.endswith("last log line: args: ***")
        assert "sesame" not in scheduler.log_tail(handle)
        assert "sesame" not in repr(status)

    def test_an_instance_without_gpus_sees_none(
        self, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        handle = scheduler.start(shell('echo "[$CUDA_VISIBLE_DEVICES]"'))
        until_gone(scheduler, handle)
        assert scheduler.log_tail(handle).splitlines()[0] == "[]"

    def test_a_log_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "logs").write_text("a file")
        one = make_local(tmp_path)
        with pytest.raises(SchedulerError, match=r"m/0 cannot be started with its log in .*/logs/m_0\.1\.log"):
            one.start(InstanceSpec("m/0", SLEEP))
        one.close()

    def test_a_log_that_was_removed_is_told(self, scheduler: LocalScheduler) -> None:
        handle = scheduler.start(shell("exit 3"))
        os.unlink(scheduler.log_path(handle))
        assert until_gone(scheduler, handle).exit_code == 3
        assert "No such file" in scheduler.log_tail(handle)


class TestGpus:
    @pytest.fixture(autouse=True)
    def _machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.smi = tmp_path / "bin" / "nvidia-smi"
        self.smi.parent.mkdir()
        monkeypatch.setenv("PATH", f"{self.smi.parent}:/usr/bin:/bin")
        monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def says(self, listing: str, status: int = 0, first: str = "") -> None:
        self.smi.write_text(f"#!/bin/sh\n{first}\ncat <<'END'\n{listing}END\nexit {status}\n")
        self.smi.chmod(0o755)

    @pytest.mark.parametrize(
        ("mask", "tokens"),
        [
            ("0,1", ("0", "1")),
            (" 3 , 1 ", ("3", "1")),
            ("", ()),
            ("-1", ()),
            ("0,-1,1", ("0",)),
            ("NoDevFiles", ()),
            ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",)),
            ("GPU-8932f937,1", ("GPU-8932f937", "1")),
            ("MIG-a0,MIG-GPU-aaaa/1/0", ("MIG-a0", "MIG-GPU-aaaa/1/0")),
        ],
    )
    def test_tokens_of_the_mask_stay_strings(self, mask: str, tokens: tuple[str, ...]) -> None:
        assert tuple(gpu.token for gpu in gpus.visible(mask).gpus) == tokens

    def test_a_gpu_has_one_lock_whatever_token_names_it(self) -> None:
        self.says(TWO_GPUS)
        whole, prefix, index = (
            gpus.visible(mask).gpus[0].key for mask in ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932f937", "0")
        )
        assert whole == prefix == index

    def test_a_device_named_twice_is_refused(self) -> None:
        self.says(TWO_GPUS)
        with pytest.raises(ConfigError, match="0 and GPU-8932f937 are the same device"):
            gpus.visible("0,GPU-8932f937")
        with pytest.raises(ConfigError, match="GPU 3 is named twice"):
            gpus.visible("3,3")

    def test_without_a_mask_nvidia_smi_is_asked(self) -> None:
        self.says(TWO_GPUS)
        assert [gpu.token for gpu in gpus.visible(None).gpus] == ["0", "1"]

    def test_slices_stand_for_the_gpu_that_is_cut_up(self) -> None:
        self.says(SLICES)
        assert [gpu.token for gpu in gpus.visible(None).gpus] == ["MIG-a0", "MIG-a1", "1", "MIG-c0"]

    def test_no_nvidia_smi_means_no_gpus_and_the_error_says_so(self, tmp_path: Path) -> None:
        one = make_local(tmp_path, None)
        assert one.capacity().nodes[0].gpus_total == 0
        with pytest.raises(CannotFit, match=r"m/0 asks for 1 GPU; this machine has 0 \(no nvidia-smi on PATH\)"):
            one.start(InstanceSpec("m/0", SLEEP, shape=Shape(gpus_per_node=1)))
        one.close()

    def test_a_failing_nvidia_smi_is_quoted(self) -> None:
        self.says("Failed to initialize NVML: Driver/library version mismatch\n", status=18)
        assert gpus.visible(None).source == (
            "nvidia-smi -L exited with 18: Failed to initialize NVML: Driver/library version mismatch"
        )

    def test_a_hanging_nvidia_smi_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.says(TWO_GPUS, first="exec sleep 60")
        monkeypatch.setattr(nvidia, "SMI_LIMIT_S", 0.2)
        assert gpus.visible(None).source == "nvidia-smi -L gave no answer in 0.2 s"

    def test_replicas_get_gpus_of_their_own(self, tmp_path: Path) -> None:
        self.says(TWO_GPUS)
        one = make_local(tmp_path, None)
        spec = InstanceSpec(
            "m/0", ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; exec sleep 300"), shape=Shape(1, 1)
        )
        handles = [one.start(spec) for _ in range(2)]
        until(lambda: all(one.log_tail(handle) for handle in handles), "both logs")
        assert [one.log_tail(handle) for handle in handles] == ["0 PCI_BUS_ID", "1 PCI_BUS_ID"]
        assert [status.address.gpus for status in one.poll(handles).values() if status.address] == [
            (("0",),),
            (("1",),),
        ]
        assert one.capacity().nodes[0].gpus_free == 0
        with pytest.raises(CannotFit, match=r"has 2 \(nvidia-smi -L\), m/0 has 1, m/0 has 1"):
            one.start(spec)
        one.stop(handles[:1])
        again = one.start(spec)
        assert one.poll([again])[again].state is State.UP
        one.close()

    def test_the_mask_order_and_an_instances_env_change_no_assignment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1c2f0a11,0")
        one = make_local(tmp_path, None)
        spec = InstanceSpec(
            "m/0", ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES"), {"CUDA_VISIBLE_DEVICES": "7"}, Shape(1, 2)
        )
        handle = one.start(spec)
        until_gone(one, handle)
        assert one.log_tail(handle).splitlines()[0] == "GPU-1c2f0a11,0"
        one.close()


class TestOtherRuns:
    def test_a_gpu_that_another_run_holds_is_not_given_and_the_holder_is_named(
        self, on_two_gpus: LocalScheduler, tmp_path: Path
    ) -> None:
        code = (
            "import sys, time, pathlib\n"
            "from pytest_areal_eval.schedulers import locks\n"
            "assert locks.try_lock(pathlib.Path(sys.argv[1]), 'gpu-0', 'n/3 of process 42')\n"
            "print('held', flush=True); time.sleep(300)"
        )
        root = Path(__file__).parents[2]
        argv = [sys.executable, "-c", code, str(tmp_path / "locks")]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=root) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            assert on_two_gpus.capacity().nodes[0].gpus_free == 1
            with pytest.raises(SchedulerError, match=r"1 of 2 free now: GPU 0 is taken by n/3 of process 42") as caught:
                on_two_gpus.start(InstanceSpec("m/0", SLEEP, shape=Shape(gpus_per_node=2)))
            assert not isinstance(caught.value, CannotFit)
            handle = on_two_gpus.start(InstanceSpec("m/0", SLEEP, shape=Shape(gpus_per_node=1)))
            address = status_of(on_two_gpus, handle).address
            assert address is not None
            assert address.gpus == (("1",),)
            other.kill()
        on_two_gpus.start(InstanceSpec("m/1", SLEEP, shape=Shape(gpus_per_node=1)))

    def test_a_gpu_stays_taken_while_a_killed_supervisors_partner_cleans_up(
        self, on_two_gpus: LocalScheduler, tmp_path: Path
    ) -> None:
        """The handle is gone at once, but its server may hold the GPU for the whole grace."""
        spec = InstanceSpec("m/0", (*PYTHON, str(PROGRAMS / "family.py"), str(tmp_path / "pids"), "stubborn"))
        handle = on_two_gpus.start(InstanceSpec("m/0", spec.argv, shape=Shape(gpus_per_node=2)))
        pids_in(tmp_path / "pids")
        os.kill(int(handle.id), signal.SIGKILL)
        assert until_gone(on_two_gpus, handle).lost is Lost.KILLED
        with pytest.raises(SchedulerError, match="0 of 2 free now"):
            on_two_gpus.start(InstanceSpec("m/1", SLEEP, shape=Shape(gpus_per_node=2)))
        on_two_gpus.stop([handle], grace_s=0.2)
        assert not any(map(processes.running, pids_in(tmp_path / "pids")))
        on_two_gpus.start(InstanceSpec("m/1", SLEEP, shape=Shape(gpus_per_node=2)))

    def test_stop_finds_a_daemon_even_when_both_supervisors_were_killed(
        self, scheduler: LocalScheduler, tmp_path: Path
    ) -> None:
        out = tmp_path / "pids"
        handle = scheduler.start(InstanceSpec("m/0", (*PYTHON, str(PROGRAMS / "family.py"), str(out))))
        pids_in(out)
        for pid in (*supervise.children(int(handle.id)), int(handle.id)):
            os.kill(pid, signal.SIGSTOP)
        for pid in (*supervise.children(int(handle.id)), int(handle.id)):
            os.kill(pid, signal.SIGKILL)
        assert until_gone(scheduler, handle).lost is Lost.KILLED
        scheduler.stop([handle], grace_s=0.1)
        assert not any(map(processes.running, pids_in(out)))

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_nothing_is_left_when_the_run_is_killed(self, number: signal.Signals, tmp_path: Path) -> None:
        """C92, with locks: the next run can start at once.  After a SIGINT Python still tidies up, files included."""
        root = Path(__file__).parents[2]
        argv = [sys.executable, str(PROGRAMS / "owner.py"), str(tmp_path), "3", *SERVER]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as owner:
            try:
                assert owner.stdout is not None
                nonces = owner.stdout.readline().decode().split()
                assert len(nonces) == 3
                until(lambda: len(processes.marked(nonces)) >= 3, "the end of the last exec")
                owner.send_signal(number)
                owner.wait(5)
            finally:
                owner.kill()
        until(lambda: not processes.marked(nonces), "the servers' end", 3)
        ports_locked = [path.name for path in tmp_path.glob("port-*")]
        assert len(ports_locked) == (0 if number == signal.SIGINT else 3)
        until(lambda: all(locks.is_free(tmp_path, name) for name in ports_locked), "the locks' end", 1)

    def test_a_fork_of_the_owner_closes_nothing(self, scheduler: LocalScheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SLEEP))
        pid = os.fork()
        if pid == 0:
            scheduler.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert status_of(scheduler, handle).state is State.UP

    def test_what_cannot_be_ended_at_exit_is_said_without_a_traceback(self, tmp_path: Path) -> None:
        code = (
            "import sys; from pathlib import Path\n"
            "from pytest_areal_eval.errors import SchedulerError\n"
            "from pytest_areal_eval.schedulers.local import LocalScheduler\n"
            "class Stuck(LocalScheduler):\n"
            "    def stop(self, handles, grace_s=0): raise SchedulerError('it is stuck', 'kill it')\n"
            "Stuck(log_dir=Path(sys.argv[1]))"
        )
        words = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, cwd=Path(__file__).parents[2])
        said = "The local scheduler could not end all that it had started: it is stuck\nkill it\n"
        assert (done.returncode, done.stderr) == (0, said)

    def test_close_reaches_an_instance_that_another_thread_is_starting(self, scheduler: LocalScheduler) -> None:
        go = threading.Event()

        def keep_starting(i: int) -> list[Handle]:
            started: list[Handle] = []
            go.wait(5)
            try:
                while True:
                    started.append(scheduler.start(InstanceSpec(f"m{i}", SLEEP)))
            except SchedulerError:
                return started

        with ThreadPoolExecutor(2) as pool:
            threads = [pool.submit(keep_starting, i) for i in range(2)]
            go.set()
            time.sleep(0.1)
            scheduler.close()
            handles = [handle for thread in threads for handle in thread.result(10)]
        assert handles
        assert {status.state for status in scheduler.poll(handles).values()} == {State.GONE}

    @pytest.mark.parametrize("busy", ["start", "poll", "stop"])
    def test_close_works_in_a_signal_handler(self, busy: str, scheduler: LocalScheduler) -> None:
        """A handler interrupts the very thread that is inside the scheduler: a lock would never be let go."""
        handles = [scheduler.start(InstanceSpec("m/0", SLEEP))]
        handler = signal.signal(signal.SIGALRM, lambda *_: scheduler.close())
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            limit = time.monotonic() + 8
            while not scheduler._roster.closed and time.monotonic() < limit:
                if busy == "start":
                    with suppress(SchedulerError):  # where the handler comes right before it
                        handles.append(scheduler.start(InstanceSpec("m/0", SLEEP)))
                elif busy == "poll":
                    scheduler.poll(handles)
                else:
                    scheduler.stop(handles)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
        assert scheduler._roster.closed
        assert {status.state for status in scheduler.poll(handles).values()} == {State.GONE}

    def test_close_does_not_wait_for_whoever_asks_how_a_process_is(self, scheduler: LocalScheduler) -> None:
        """Where a handler interrupts that very question, its asker cannot go on before the handler is done."""
        handle = scheduler.start(InstanceSpec("m/0", SLEEP))
        asked = scheduler._roster.known(handle).process
        with asked._waitpid_lock:  # type: ignore[attr-defined]
            began = time.monotonic()
            scheduler.close()
            assert time.monotonic() - began < 5
            assert asked.poll() is None
        assert scheduler.poll([handle])[handle].state is State.GONE


class TestPorts:
    def test_a_port_is_below_the_ephemeral_range(self, tmp_path: Path) -> None:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        port, lock = ports.pick(tmp_path, "m/0")
        with lock:
            assert ports.LOWEST <= port < lowest

    @pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
    def test_a_port_that_somebody_listens_on_is_not_picked(self, address: str, tmp_path: Path) -> None:
        with socket.create_server((address, 0)) as taken:
            number = taken.getsockname()[1]
            with pytest.raises(SchedulerError, match=f"No free TCP port for m/0: 200 draws from {number}-{number}"):
                ports.pick(tmp_path, "m/0", number, number)
        assert not list(tmp_path.iterdir())

    def test_a_port_that_another_run_has_picked_is_not_picked(self, tmp_path: Path) -> None:
        """Nobody listens there yet: a server needs seconds to bind."""
        port, lock = ports.pick(tmp_path, "m/0")
        with lock, pytest.raises(SchedulerError, match="all in use"):
            ports.pick(tmp_path, "m/1", port, port)
        with ports.pick(tmp_path, "m/1", port, port)[1]:
            pass

    def test_a_port_taken_after_the_pick_is_told_so_that_another_can_be_tried(self, scheduler: LocalScheduler) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            argv = tuple(str(taken.getsockname()[1]) if word == "{port}" else word for word in SERVER)
            status = until_gone(scheduler, scheduler.start(InstanceSpec("m/0", argv)))
        assert status.reason.startswith(postmortem.ADDRESS_IN_USE)
        assert status.lost is Lost.EXITED

    def test_lock_files_are_removed_when_an_instance_is_stopped(
        self, on_two_gpus: LocalScheduler, tmp_path: Path
    ) -> None:
        handle = on_two_gpus.start(InstanceSpec("m/0", SLEEP, shape=Shape(gpus_per_node=2)))
        assert sorted(path.name[:4] for path in (tmp_path / "locks").iterdir()) == ["gpu-", "gpu-", "port"]
        on_two_gpus.stop([handle])
        assert not list((tmp_path / "locks").iterdir())

    def test_a_lock_file_removed_in_between_is_made_anew(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two runs must never hold two files of one name."""
        flock, files = fcntl.flock, [tmp_path / "port-1"]

        def after_a_removal(fd: int, how: int) -> None:
            if files:
                files.pop().unlink()
            flock(fd, how)

        monkeypatch.setattr("fcntl.flock", after_a_removal)
        lock = locks.try_lock(tmp_path, "port-1", "a")
        assert lock is not None
        with lock:
            assert locks.held_by(tmp_path, "port-1") == "a"
            assert locks.try_lock(tmp_path, "port-1", "b") is None

    def test_a_lock_file_is_discarded_once_nobody_holds_it(self, tmp_path: Path) -> None:
        first = locks.try_lock(tmp_path, "port-1", "a")
        assert first is not None
        with first:
            assert locks.try_lock(tmp_path, "port-1", "b") is None
            locks.discard(first.path)
            assert first.path.exists()
            assert locks.held_by(tmp_path, "port-1") == "a"
        locks.discard(first.path)
        assert not first.path.exists()

    def test_the_lock_folder_is_this_users_alone(self) -> None:
        folder = locks.runtime_folder()
        assert folder.stat().st_uid == os.geteuid()
        assert folder.stat().st_mode & 0o077 == 0

    def test_a_lock_folder_that_others_may_write_to_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(locks, "Path", lambda path: tmp_path / "locks")
        assert locks.runtime_folder() == tmp_path / "locks"
        (tmp_path / "locks").chmod(0o777)
        with pytest.raises(SchedulerError, match=r"is not a folder that only user .* may write to"):
            locks.runtime_folder()


class TestPostmortem:
    @pytest.mark.parametrize(
        ("status", "oom", "lost", "code", "says"),
        [
            (0, False, Lost.EXITED, 0, "exited with code 0"),
            (1, False, Lost.EXITED, 1, "exited with code 1"),
            (1, True, Lost.EXITED, 1, "the kernel has just killed a process"),
            (0, True, Lost.EXITED, 0, "exited with code 0 after"),
            (137, False, Lost.KILLED, -9, "killed by SIGKILL (perhaps out of memory)"),
            (-9, True, Lost.OOM, -9, "out of memory"),
            (134, True, Lost.KILLED, -6, "killed by SIGABRT"),
            (255, False, Lost.KILLED, -127, "signal 127"),
        ],
    )
    def test_an_end_is_told_by_its_kind(self, status: int, oom: bool, lost: Lost, code: int, says: str) -> None:
        found = postmortem.explain(status, "", seconds=1, oom=oom)
        assert found[:2] == (lost, code)
        assert says in found[2]

    def test_what_the_supervisor_logs_is_not_the_servers_last_line(self) -> None:
        log = "loading\n\nsupervise: the command ended with 1\n"
        assert postmortem.explain(1, log, seconds=1)[2] == "exited with code 1 after 1.0 s; last log line: loading"

    def test_a_very_long_last_line_is_cut(self) -> None:
        assert len(postmortem.explain(1, "x" * 10_000, seconds=1)[2]) < 400

    def test_an_out_of_memory_kill_since_the_last_look_is_told(
        self, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handle = scheduler.start(shell("sleep 0.2; kill -KILL $$"))
        assert status_of(scheduler, handle).state is State.UP
        kills = postmortem.oom_kills()
        monkeypatch.setattr(postmortem, "oom_kills", lambda: kills + 1)
        scheduler._oom_kills = kills
        time.sleep(0.4)
        assert until_gone(scheduler, handle).lost is Lost.OOM

    def test_the_kernels_count_is_read(self) -> None:
        counted = [line for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("oom_kill ")]
        assert counted == [f"oom_kill {postmortem.oom_kills()}"]
