"""What the controller's fleet relies on, whatever the scheduler: tests for each scheduler's own class to inherit."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from support.waiting import pids_in, until

from pytest_areal_eval.errors import CannotFit, SchedulerError
from pytest_areal_eval.schedulers import processes
from pytest_areal_eval.schedulers.base import Address, Handle, InstanceSpec, Lost, Scheduler, Shape, State, Status

PROGRAMS = Path(__file__).parents[1] / "programs"
PYTHON = (sys.executable, "-I", "-S")
SERVER = (*PYTHON, str(PROGRAMS / "server.py"), "{host}", "{port}", "{nonce}")
SLEEP = ("sleep", "300")


def shell(text: str, name: str = "m/0", **env: str) -> InstanceSpec:
    return InstanceSpec(name, ("sh", "-c", text), env)


def status_of(scheduler: Scheduler, handle: Handle) -> Status:
    return scheduler.poll([handle])[handle]


def until_gone(scheduler: Scheduler, handle: Handle, limit_s: float = 30.0) -> Status:
    deadline = time.monotonic() + limit_s
    while (status := status_of(scheduler, handle)).state is not State.GONE:
        assert time.monotonic() < deadline, f"{handle.name} is not gone within {limit_s} s: {status}"
        time.sleep(0.01)
    return status


def until_up(scheduler: Scheduler, handle: Handle, limit_s: float = 30.0) -> Address:
    deadline = time.monotonic() + limit_s
    while (status := status_of(scheduler, handle)).state is not State.UP:
        assert status.state is not State.GONE, f"{handle.name} is gone: {status}"
        assert time.monotonic() < deadline, f"{handle.name} is not up within {limit_s} s: {status}"
        time.sleep(0.01)
    assert status.address is not None
    return status.address


def nonce_at(host: str, port: int, limit_s: float = 8.0) -> str:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            with socket.create_connection((host, port), timeout=2) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\n\r\n")
                return connection.makefile().read().rpartition("\n")[2]
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"nothing listens on {host}:{port}"
            time.sleep(0.01)


def family(out: Path, how: str = "") -> InstanceSpec:
    """A server and its daemon; ``out`` appears when both run."""
    return InstanceSpec("m/0", (*PYTHON, str(PROGRAMS / "family.py"), str(out), how))


class SchedulerContract:
    """Uses the ``scheduler`` fixture of the module, which tests may share, and ``own``, which one test closes.

    Attributes:
        nodes: how many nodes the scheduler has.
        gpus_per_node: GPUs of each.
        many: how many instances are started at once.
    """

    nodes = 1
    gpus_per_node = 0
    many = 16

    @pytest.fixture
    def own(self, scheduler: Scheduler) -> Scheduler:
        return scheduler

    def test_a_server_answers_at_its_address_with_its_nonce(self, scheduler: Scheduler) -> None:
        handle = scheduler.start(InstanceSpec("m/0", SERVER))
        address = until_up(scheduler, handle)
        assert nonce_at(address.host, address.port) == address.nonce
        assert address.log_path == scheduler.log_path(handle)
        line = f"listening on {address.host}:{address.port}"
        until(lambda: line in scheduler.log_tail(handle), "the server's line in its log")
        scheduler.stop([handle])

    def test_placeholders_are_filled_in_argv_and_environment(self, scheduler: Scheduler) -> None:
        handle = scheduler.start(
            InstanceSpec("m/0", ("sh", "-c", 'echo "$0 $AT"', '{"a": {port}}'), {"AT": "{host}:{port} {nonce} {other}"})
        )
        address = until_gone(scheduler, handle).address
        assert address is not None
        first, _, rest = scheduler.log_tail(handle).splitlines()[0].partition("} ")
        assert json.loads(first + "}") == {"a": address.port}
        assert rest == f"{address.host}:{address.port} {address.nonce} {{other}}"

    def test_start_returns_before_the_server_does_anything(self, scheduler: Scheduler) -> None:
        scheduler.capacity()  # it is connected
        started = time.monotonic()
        handle = scheduler.start(InstanceSpec("m/0", SLEEP))
        assert time.monotonic() - started < 2
        assert status_of(scheduler, handle).state in (State.WAITING, State.STARTING, State.UP)
        scheduler.stop([handle])

    def test_an_exit_is_told_with_its_code_and_the_last_log_line(self, scheduler: Scheduler) -> None:
        """C93: "server launch failed" must say why."""
        handle = scheduler.start(shell("echo first; echo CUDA error: no device >&2; exit 3"))
        status = until_gone(scheduler, handle)
        assert (status.lost, status.exit_code) == (Lost.EXITED, 3)
        assert "exited with code 3 after" in status.reason
        assert status.reason.endswith("last log line: CUDA error: no device")

    def test_a_killed_server_is_told_with_the_signal(self, scheduler: Scheduler) -> None:
        handle = scheduler.start(shell("kill -SEGV $$"))
        status = until_gone(scheduler, handle)
        assert (status.lost, status.exit_code) == (Lost.KILLED, -signal.SIGSEGV)
        assert "SIGSEGV" in status.reason

    def test_a_status_does_not_change_once_gone(self, scheduler: Scheduler) -> None:
        handle = scheduler.start(shell("exit 3"))
        first = until_gone(scheduler, handle)
        scheduler.stop([handle])
        assert status_of(scheduler, handle) == first

    def test_an_unknown_handle_is_a_status_not_an_exception(self, scheduler: Scheduler) -> None:
        stranger = Handle("m/9", 1, "1")
        assert status_of(scheduler, stranger).lost is Lost.UNKNOWN
        scheduler.stop([stranger])
        with pytest.raises(SchedulerError, match=r"m/9 .* was not started"):
            scheduler.log_tail(stranger)

    def test_stop_leaves_nothing_and_may_be_repeated(self, scheduler: Scheduler, tmp_path: Path) -> None:
        """C92: not even a daemon."""
        handle = scheduler.start(family(tmp_path / "pids"))
        nonce = until_up(scheduler, handle).nonce
        pids_in(tmp_path / "pids")
        assert len(processes.marked([nonce])) >= 2
        scheduler.stop([handle])
        assert not processes.marked([nonce])
        status = status_of(scheduler, handle)
        assert (status.state, status.lost) == (State.GONE, Lost.CANCELLED)
        scheduler.stop([handle])

    def test_stop_kills_what_ignores_it_after_the_grace(self, scheduler: Scheduler, tmp_path: Path) -> None:
        handle = scheduler.start(family(tmp_path / "pids", "stubborn"))
        nonce = until_up(scheduler, handle).nonce
        pids_in(tmp_path / "pids")
        started = time.monotonic()
        scheduler.stop([handle], grace_s=0.3)
        assert 0.3 <= time.monotonic() - started < 3
        assert not processes.marked([nonce])

    def test_each_attempt_has_its_own_number_and_log(self, scheduler: Scheduler) -> None:
        handles = [scheduler.start(shell(f"echo try {i}", "m/attempts")) for i in (1, 2)]
        for handle in handles:
            until_gone(scheduler, handle)
        assert [handle.attempt for handle in handles] == [1, 2]
        assert [scheduler.log_tail(handle).splitlines()[0] for handle in handles] == ["try 1", "try 2"]

    def test_the_tail_is_the_last_lines(self, scheduler: Scheduler) -> None:
        handle = scheduler.start(shell("seq 1 100000; printf 'bad \\377 byte\\n'; exec sleep 300"))
        until_up(scheduler, handle)
        until(lambda: "byte" in scheduler.log_tail(handle, 1), "the last line")
        assert scheduler.log_tail(handle, 2).splitlines() == ["100000", "bad \ufffd byte"]
        scheduler.stop([handle])

    def test_many_instances_run_at_once_on_ports_of_their_own(self, scheduler: Scheduler) -> None:
        handles = [scheduler.start(InstanceSpec(f"m/{i}", SERVER)) for i in range(self.many)]
        addresses = [until_up(scheduler, handle) for handle in handles]
        assert [nonce_at(one.host, one.port) for one in addresses] == [one.nonce for one in addresses]
        assert len({(address.host, address.port) for address in addresses}) == self.many
        scheduler.stop(handles)
        assert {status.state for status in scheduler.poll(handles).values()} == {State.GONE}

    def test_more_than_there_is_cannot_fit_and_starts_nothing(self, scheduler: Scheduler, tmp_path: Path) -> None:
        with pytest.raises(CannotFit, match=rf"m/0 asks for 99 GPUs.* {self.gpus_per_node}\b"):
            scheduler.start(InstanceSpec("m/0", ("touch", str(tmp_path / "ran")), shape=Shape(gpus_per_node=99)))
        with pytest.raises(CannotFit, match=rf"m/0 asks for 99 nodes.* {self.nodes}\b"):
            scheduler.start(InstanceSpec("m/0", ("touch", str(tmp_path / "ran")), shape=Shape(nodes=99)))
        assert not (tmp_path / "ran").exists()

    def test_an_excluded_node_is_not_used(self, scheduler: Scheduler) -> None:
        names = [node.name for node in scheduler.capacity().nodes if node.usable]
        assert len(names) == self.nodes
        with pytest.raises(CannotFit, match="m/0"):
            scheduler.start(InstanceSpec("m/0", SLEEP), exclude=names)
        for others in [names[1:], names[:-1]] if self.nodes > 1 else []:
            handle = scheduler.start(InstanceSpec("m/0", SLEEP), exclude=others)
            assert {*until_up(scheduler, handle).nodes}.isdisjoint(others)
            scheduler.stop([handle])

    def test_close_stops_all_and_may_be_repeated(self, own: Scheduler) -> None:
        handles = [own.start(InstanceSpec(f"m/{i}", SLEEP)) for i in range(2)]
        own.close()
        assert {status.lost for status in own.poll(handles).values()} == {Lost.CANCELLED}
        own.close()
        with pytest.raises(SchedulerError, match="closed"):
            own.start(InstanceSpec("m/2", SLEEP))
