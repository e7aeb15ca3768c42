"""Servers under the local scheduler, and a scripted scheduler for what a real one does rarely."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standin.engine import SERVER, StandinEngine
from standin.server import in_thread
from support import fleet_contract
from support.waiting import until

from pytest_areal_eval.api import EpisodeStatus, Rollout
from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController, fleet, probe, recovery, upkeep
from pytest_areal_eval.controller.instances import as_flags
from pytest_areal_eval.controller.placement import Placement
from pytest_areal_eval.controller.settings import Needs
from pytest_areal_eval.engines.base import Gang, Launch
from pytest_areal_eval.errors import CannotFit, ConfigError, EngineLost, EngineStartError, SchedulerError
from pytest_areal_eval.schedulers.base import Address, Capacity, Handle, InstanceSpec, Lost, NodeFree, State, Status
from pytest_areal_eval.schedulers.local import LocalScheduler


class Ask:
    """One question; the reward is whether the answer says 42."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        reply = await engine.chat([{"role": "user", "content": data["q"]}], max_new_tokens=64)
        return float("42" in reply.text)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[LocalScheduler]:
    (tmp_path / "locks").mkdir()
    made = LocalScheduler(log_dir=tmp_path / "logs", gpus=(), lock_dir=tmp_path / "locks")
    yield made
    made.close()


def running(
    engine: StandinEngine, scheduler: Any, on_event: Callable[[Event], None] | None = None, **settings: Any
) -> AbstractContextManager[RolloutController]:
    chosen = {"episode_timeout_s": 20.0, "silence_s": ControllerSettings().silence_s, **settings}
    return fleet_contract.running(scheduler, engine, on_event, **chosen)


def run_rows(controller: RolloutController, count: int = 50) -> list[Rollout]:
    return controller.rollout_batch([{"q": f"Question {i}."} for i in range(count)], Ask())


def server_pids(log_dir: Path) -> list[int]:
    """The stand-in servers whose output goes below ``log_dir``, without their supervisors."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            argv = (process / "cmdline").read_bytes().split(b"\0")
            if argv[1:2] == [SERVER.encode()] and str(log_dir) in os.readlink(process / "fd/1"):
                found.append(int(process.name))
        except OSError:  # it ended meanwhile
            continue
    return found


# With the local scheduler


def test_servers_come_up_answer_and_are_gone_afterwards(scheduler: LocalScheduler, tmp_path: Path) -> None:
    with running(StandinEngine(replicas=2), scheduler) as controller:
        rollouts = run_rows(controller)
        until(lambda: controller.snapshot().replicas_ready == 2, "both replicas")
        run_rows(controller)
        assert len(server_pids(tmp_path)) == 2
    assert {r.reward for r in rollouts} == {1.0}
    assert server_pids(tmp_path) == []


def test_the_first_ready_replica_starts_the_run(scheduler: LocalScheduler) -> None:
    engine = StandinEngine(replicas=2, only={1: ["--ready-after", "30"]})
    started = time.monotonic()
    with running(engine, scheduler) as controller:
        assert {r.reward for r in run_rows(controller)} == {1.0}
        snapshot = controller.snapshot()
        assert (snapshot.replicas_ready, snapshot.replicas_total) == (1, 2)
    assert time.monotonic() - started < 15


def test_every_request_carries_the_sessions_token_and_nobody_else_has_it(scheduler: LocalScheduler) -> None:
    tokens: list[str] = []

    class Watched(StandinEngine):
        def launch(self, name: str, token: str) -> Any:
            tokens.append(token)
            return super().launch(name, token)

    for _ in range(2):
        with running(Watched(), scheduler) as controller:
            assert run_rows(controller, 3)[0].reward == 1.0
    assert len(set(tokens)) == 2
    assert all(len(token) >= 40 for token in tokens)


def test_a_server_that_exits_at_start_is_reported_once_with_all_that_helps(scheduler: LocalScheduler) -> None:
    """The command, the exit code, the log's path and its end; the same quick exit twice ends the attempts."""
    events: list[Event] = []
    started = time.monotonic()
    with (
        pytest.raises(EngineStartError) as caught,
        running(StandinEngine(arguments=["--exit-at-start", "3"]), scheduler, events.append, restarts=5),
    ):
        pass
    message = str(caught.value)
    assert "exited with code 3" in message
    assert "--exit-at-start 3" in message
    assert "{port}" not in message
    assert "torch.OutOfMemoryError: CUDA out of memory" in message
    assert "role_0.2.log" in message
    assert [e.kind for e in events].count("restart") == 1
    assert time.monotonic() - started < 15


def test_a_server_that_never_gets_ready_fails_the_start(scheduler: LocalScheduler, tmp_path: Path) -> None:
    engine = StandinEngine(arguments=["--ready-after", "60"])
    with (
        pytest.raises(EngineStartError, match=r"not ready within 1 s: .*answers 503"),
        running(engine, scheduler, start_timeout_s=1.0, restarts=0),
    ):
        pass
    assert server_pids(tmp_path) == []


class TestContract(fleet_contract.FleetContract):
    """Under the local scheduler."""


def test_a_server_that_keeps_dying_spends_its_restarts_and_what_finished_is_kept(scheduler: LocalScheduler) -> None:
    """C14: the same crash is not restarted for ever."""
    engine = StandinEngine(arguments=["--latency-ms", "20", "--die-after", "40"])
    started = time.monotonic()
    with running(engine, scheduler) as controller:
        rollouts = run_rows(controller, 200)
        failure = controller.failure
    assert isinstance(failure, EngineLost)
    assert "exited with code 9" in str(failure)
    assert "illegal memory access" in str(failure)
    statuses = [r.episodes[0].status for r in rollouts]
    assert 40 <= statuses.count(EpisodeStatus.SCORED) <= 80
    assert statuses.count(EpisodeStatus.SCORED) + statuses.count(EpisodeStatus.ENGINE_LOST) == 200
    assert time.monotonic() - started < 30


def test_an_interrupted_start_leaves_nothing_behind(scheduler: LocalScheduler, tmp_path: Path) -> None:
    controller = RolloutController(StandinEngine(arguments=["--ready-after", "60"]), scheduler)
    threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        controller.initialize()
    assert server_pids(tmp_path) == []
    assert not [t for t in threading.enumerate() if t.name == "areal-eval"]


def test_a_stranger_on_the_port_is_not_ready(tmp_path: Path) -> None:
    with in_thread(nonce="somebody-else") as stranger:
        scripted = Scripted([[_up(stranger.port)]])
        with (
            pytest.raises(EngineStartError, match="is answered by another program"),
            running(StandinEngine(), scripted, start_timeout_s=0.5, restarts=0),
        ):
            pass


def test_an_engine_with_servers_needs_a_scheduler() -> None:
    with pytest.raises(ConfigError, match="there is no scheduler"):
        RolloutController(StandinEngine()).initialize()


# With a scripted scheduler


class Scripted:
    """A scheduler whose instances go through given states, one a poll; the last one stays."""

    name = "scripted"

    def __init__(self, lives: Sequence[Sequence[Status | Exception]], nodes: Sequence[str] = (), gpus: int = 0) -> None:
        self._lives = [list(life) for life in lives]
        self.nodes = tuple(NodeFree(name, gpus, gpus, cpus_total=64, cpus_free=64) for name in nodes)
        self.may_end = threading.Event()
        self.may_end.set()
        self.polls = 0
        self.excluded: list[set[str]] = []
        self._by_handle: dict[Handle, list[Status | Exception]] = {}
        self.started: list[InstanceSpec] = []
        self.stopped: list[Handle] = []
        self.log = "slurmstepd: error: Detected 1 oom_kill event"

    def capacity(self) -> Capacity:
        return Capacity(self.nodes)

    def start(self, spec: InstanceSpec, exclude: Collection[str] = ()) -> Handle:
        if not self._lives:
            raise CannotFit(f"{spec.name} wants 8 GPUs; there are 2")
        handle = Handle(spec.name, len(self.started) + 1, "4312")
        self.excluded.append(set(exclude))
        self.started.append(spec)
        self._by_handle[handle] = self._lives.pop(0)
        return handle

    def poll(self, handles: Sequence[Handle]) -> dict[Handle, Status]:
        found = {}
        self.polls += 1
        for handle in handles:
            life = self._by_handle[handle]
            now = life.pop(0) if len(life) > 1 else life[0]
            if isinstance(now, Exception):
                raise now
            found[handle] = now
        return found

    def stop(self, handles: Sequence[Handle], grace_s: float = 10.0) -> None:
        self.may_end.wait(10.0)
        self.stopped += handles

    def log_tail(self, handle: Handle, lines: int = 50) -> str:
        return self.log

    def log_path(self, handle: Handle) -> str:
        return "/logs/role_0.log"

    def close(self) -> None:
        """Nothing runs."""


def _up(port: int, nonce: str = "n") -> Status:
    return Status(State.UP, address=Address("127.0.0.1", port, nonce, "/logs/role_0.log"))


def _gone(**known: Any) -> Status:
    return Status(State.GONE, **known)


def test_what_a_waiting_instance_waits_for_is_told() -> None:
    events: list[Event] = []
    waiting = Status(State.WAITING, "4312 PENDING Resources")
    with in_thread(nonce="n") as server:
        scripted = Scripted([[waiting, waiting, _up(server.port)]])
        with running(StandinEngine(), scripted, events.append) as controller:
            assert run_rows(controller, 3)[0].reward == 1.0
    assert [e.text for e in events if e.kind == "waiting"] == [
        "role/0 waits: 4312 PENDING Resources; for 86400 s at most"
    ]
    assert scripted.stopped


def test_waiting_in_the_queue_has_a_limit_of_its_own() -> None:
    scripted = Scripted([[Status(State.WAITING, "PENDING Priority")]])
    with (
        pytest.raises(EngineStartError, match=r"after 0\.3 s: PENDING Priority\nWait longer with --queue-timeout"),
        running(StandinEngine(), scripted, queue_timeout_s=0.3, restarts=0),
    ):
        pass
    assert len(scripted.stopped) >= 1


def test_who_waited_in_the_queue_in_vain_does_not_queue_again() -> None:
    scripted = Scripted([[Status(State.WAITING, "PENDING Priority")]])
    with (
        pytest.raises(EngineStartError, match="attempt 1: still waiting"),
        running(StandinEngine(), scripted, queue_timeout_s=0.3, restarts=5),
    ):
        pass
    assert len(scripted.started) == 1


def test_beside_a_ready_replica_another_may_wait_for_ever() -> None:
    with in_thread(nonce="n") as server:
        scripted = Scripted([[_up(server.port)], [Status(State.WAITING, "PENDING Resources")]])
        with running(StandinEngine(replicas=2), scripted, queue_timeout_s=0.3) as controller:
            time.sleep(1.0)
            assert {r.reward for r in run_rows(controller, 10)} == {1.0}
            snapshot = controller.snapshot()
            assert (snapshot.replicas_ready, snapshot.replicas_lost) == (1, 0)
            assert scripted.stopped == []


@pytest.mark.parametrize(("silence_s", "lost"), [(30.0, 0), (0.4, 1)])
def test_a_server_too_busy_for_its_health_check_is_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch, silence_s: float, lost: int
) -> None:
    """SGLang's answers after its next step, which takes seconds where prompts are long or the machine is slow."""
    monkeypatch.setattr(probe, "PROBE_LIMIT_S", 0.05)
    monkeypatch.setattr(upkeep, "TICK_S", 0.02)
    with in_thread(nonce="n") as server:
        scripted = Scripted([[_up(server.port)]])
        with running(StandinEngine(), scripted, restarts=0, health_interval_s=0.05, silence_s=silence_s) as controller:
            server.server.health_delay_s = None
            if lost:
                until(lambda: controller.snapshot().replicas_lost == lost, "the loss")
            else:
                time.sleep(1.0)
                assert controller.snapshot().replicas_lost == 0


def test_an_instance_that_can_never_start_is_not_tried_again() -> None:
    never = Status(State.WAITING, "PartitionNodeLimit", never=True)
    scripted = Scripted([[never]])
    with (
        pytest.raises(CannotFit, match=r"can never start: PartitionNodeLimit$"),
        running(StandinEngine(), scripted, restarts=5),
    ):
        pass
    assert len(scripted.started) == 1


def test_what_cannot_fit_is_raised_as_it_is() -> None:
    with pytest.raises(CannotFit, match="wants 8 GPUs"), running(StandinEngine(), Scripted([])):
        pass


def test_how_an_instance_was_lost_is_told_once() -> None:
    scripted = Scripted([[_gone(lost=Lost.OOM, exit_code=-9, reason="oom-kill event in step 4312.0")]])
    with pytest.raises(EngineStartError) as caught, running(StandinEngine(), scripted, restarts=0):
        pass
    assert str(caught.value).startswith("the engine did not start; role/0, attempt 1: oom-kill event in step 4312.0\n")
    assert "log: /logs/role_0.log" in str(caught.value)
    assert "Detected 1 oom_kill event" in str(caught.value)


def test_of_a_long_line_in_a_log_the_beginning_is_told() -> None:
    """vLLM names all parameters of a model in one, twice."""
    scripted = Scripted([[_gone(exit_code=1)]])
    scripted.log = "\n".join([f"ValueError: no parameter named x: {'y' * 9000}", *["more"] * 30, "z" * 9000])
    with pytest.raises(EngineStartError) as caught, running(StandinEngine(), scripted, restarts=0):
        pass
    assert "its first error: ValueError: no parameter named x: yyy" in str(caught.value)
    assert max(len(line) for line in str(caught.value).splitlines()) < 600


def test_a_loss_without_a_reason_is_told_by_its_kind() -> None:
    with (
        pytest.raises(EngineStartError, match="role/0, attempt 1: node lost\n"),
        running(StandinEngine(), Scripted([[_gone(lost=Lost.NODE)]]), restarts=0),
    ):
        pass


def test_an_exit_that_no_start_can_help_is_not_tried_again() -> None:
    """EX_CONFIG: a torn checkpoint stays torn, however long it took to find out."""
    ready = [_up(1), _gone(lost=Lost.EXITED, exit_code=78, reason="exited with code 78 after 90.0 s")]
    scripted = Scripted([ready])
    with (
        pytest.raises(EngineStartError, match=r"attempt 1: exited with code 78 after 90\.0 s"),
        running(StandinEngine(), scripted, restarts=5),
    ):
        pass
    assert len(scripted.started) == 1


# Ending what is lost


def test_ending_a_lost_instance_holds_up_nobody_but_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "TICK_S", 0.05)
    monkeypatch.setattr(recovery, "QUIET_S", 0.05)
    events: list[Event] = []
    with in_thread(nonce="n") as server:
        scripted = Scripted([[_up(server.port), _gone(lost=Lost.KILLED)], [_up(server.port)], [_up(server.port)]])
        scripted.may_end.clear()
        with running(StandinEngine(replicas=2), scripted, events.append, health_interval_s=0.05) as controller:
            until(lambda: controller.snapshot().replicas_lost == 1, "the loss")
            until(lambda: controller.snapshot().replicas_ready == 1, "the other replica")
            polls = scripted.polls
            until(lambda: scripted.polls > polls + 3, "further polls")
            assert (len(scripted.started), scripted.stopped) == (2, [])
            assert "role/0 waits for the end of its last server" in [event.text for event in events]
            scripted.may_end.set()
            until(lambda: controller.snapshot().replicas_ready == 2, "the successor")
            assert {r.reward for r in run_rows(controller, 10)} == {1.0}


def _lost_node(lost: Any, port: int) -> list[Status | Exception]:
    """It listens nowhere any more, which may be all that is known."""
    nodes = ("node1",)
    up = replace(_up(port), address=Address("127.0.0.1", port, "n", "/logs/role_0.log", nodes=nodes))
    return [up, _gone(lost=lost, address=up.address)] if lost else [up]


@pytest.mark.parametrize("lost", [None, Lost.NODE])
@pytest.mark.parametrize(("free", "waits"), [(8, False), (0, True)])
def test_where_nobody_answers_the_successor_starts_at_once_if_another_node_is_free(
    lost: Lost | None, free: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TICK_S", 0.02)
    monkeypatch.setattr(fleet, "TICK_S", 0.05)
    with in_thread(nonce="n") as server:
        with in_thread(nonce="n") as first:
            scripted = Scripted([_lost_node(lost, first.port), [_up(server.port)]], nodes=("node1", "node2"), gpus=8)
            scripted.nodes = (scripted.nodes[0], replace(scripted.nodes[1], gpus_free=free))
            manager = running(Split(8, None), scripted, health_interval_s=0.05)
            controller = manager.__enter__()
            scripted.may_end.clear()
        try:
            until(lambda: controller.snapshot().replicas_lost == 1, "the loss")
            time.sleep(0.2)
            assert len(scripted.started) == 2 - waits
            scripted.may_end.set()
            assert run_rows(controller, 3)[0].reward == 1.0
            assert scripted.excluded == [set(), set() if waits else {"node1"}]
        finally:
            manager.__exit__(None, None, None)


def test_an_instance_that_is_just_ending_has_ended_before_the_run() -> None:
    with in_thread(nonce="n") as server:
        scripted = Scripted([[_up(server.port), _gone(lost=Lost.KILLED)]])
        scripted.may_end.clear()
        with running(StandinEngine(), scripted, restarts=0, health_interval_s=0.05) as controller:
            until(lambda: controller.failure is not None, "the loss")
            assert scripted.stopped == []
            threading.Timer(0.3, scripted.may_end.set).start()
        assert len(scripted.stopped) == 1


def test_what_could_not_be_ended_is_raised_and_the_loop_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread(nonce="n") as server:
        scripted = Scripted([[_up(server.port)]])

        def stop(handles: Sequence[Handle], grace_s: float = 10.0) -> None:
            raise SchedulerError("Slurm still has 4312", "End it by hand: scancel 4312")

        monkeypatch.setattr(scripted, "stop", stop)
        with pytest.raises(SchedulerError, match="scancel 4312"), running(StandinEngine(), scripted):
            pass
    assert not [thread for thread in threading.enumerate() if thread.name == "areal-eval"]


# Nodes


def _on(node: str, **known: Any) -> Status:
    address = Address("127.0.0.1", 1, "n", "/logs/role_0.log", nodes=(node,))
    return _gone(**{"lost": Lost.EXITED, "exit_code": 7, **known}, address=address)


@pytest.mark.parametrize("lost", [Lost.EXITED, Lost.OOM, Lost.NODE])
def test_a_node_that_loses_two_servers_is_not_used_again_and_that_is_said_once(lost: Lost) -> None:
    events: list[Event] = []
    with in_thread(nonce="n") as server:
        lives = [[_on("node2", lost=lost, exit_code=code)] for code in (3, 4, 5)]
        scripted = Scripted([*lives, [_up(server.port)]], nodes=("node1", "node2"))
        with running(StandinEngine(), scripted, events.append, restarts=5) as controller:
            assert run_rows(controller, 3)[0].reward == 1.0
    avoided = {"node2"} if lost is Lost.NODE else set()
    assert scripted.excluded == [set(), avoided, {"node2"}, {"node2"}]
    said = [e.text for e in events if e.kind == "warning"]
    assert said == ["node2 is not used again: 2 servers were lost there"]


@pytest.mark.parametrize(
    "loss",
    [
        {"lost": Lost.PREEMPTED},
        {"lost": Lost.CANCELLED},
        {"lost": Lost.TIME_LIMIT},
    ],
)
def test_a_loss_that_is_not_the_nodes_fault_is_not_counted(loss: dict[str, Lost]) -> None:
    lives = [[_on("node2", exit_code=None, **loss)] for _ in range(3)]
    scripted = Scripted(lives, nodes=("node1", "node2"))
    with pytest.raises(EngineStartError), running(StandinEngine(), scripted, restarts=2):
        pass
    assert scripted.excluded == [set(), set(), set()]


@pytest.mark.parametrize("lost", [Lost.PREEMPTED, Lost.TIME_LIMIT])
def test_a_working_server_that_is_taken_away_spends_no_restart(lost: Lost) -> None:
    with in_thread(nonce="n") as server:
        lives: list[list[Status | Exception]] = [[_up(server.port), _gone(lost=lost)] for _ in range(3)]
        scripted = Scripted([*lives, [_up(server.port)]])
        with running(StandinEngine(), scripted, restarts=0, health_interval_s=0.05) as controller:
            until(lambda: len(scripted.started) == 4, "a fourth start")
            assert run_rows(controller, 3)[0].reward == 1.0
            assert controller.snapshot().replicas_lost == 3


def test_of_a_gang_only_the_node_that_failed_is_blamed() -> None:
    address = Address("127.0.0.1", 1, "n", "/logs/role_0.log", nodes=("node1", "node2"))
    told = [[_gone(address=address, lost=Lost.EXITED, exit_code=code, node="node2")] for code in (3, 4)]
    untold = [[_gone(address=address, lost=Lost.EXITED, exit_code=code)] for code in (5, 6)]
    scripted = Scripted([*untold, *told, [_gone(lost=Lost.UNKNOWN)]], nodes=("node1", "node2", "node3", "node4"))
    with pytest.raises(EngineStartError), running(StandinEngine(), scripted, restarts=4):
        pass
    assert scripted.excluded == [set(), set(), set(), set(), {"node2"}]


def test_the_last_half_of_the_nodes_is_never_given_up() -> None:
    """Where servers fail everywhere it is not the nodes, and the run must still say what it is."""
    nodes = ("node1", "node2", "node3")
    lives = [[_on(node, exit_code=code)] for code, node in enumerate((*nodes, *nodes), 3)]
    scripted = Scripted(lives, nodes=nodes)
    with pytest.raises(EngineStartError, match="exited with code 8"), running(StandinEngine(), scripted, restarts=5):
        pass
    assert scripted.excluded == [set(), set(), set(), set(), {"node1"}, {"node1"}]


def test_the_only_machine_is_never_given_up(scheduler: LocalScheduler) -> None:
    engine = StandinEngine(arguments=["--latency-ms", "5", "--die-after", "20"])
    with running(engine, scheduler, restarts=3) as controller:
        run_rows(controller, 200)
        assert "role/0, attempt 4: exited with code 9" in str(controller.failure)


# Replicas over several nodes


class Split(StandinEngine):
    """A replica that asks for GPUs, on several nodes where it has to."""

    def __init__(self, gpus: int, gang: Gang | None) -> None:
        super().__init__()
        self.wanted = gpus, gang

    def launch(self, name: str, token: str) -> Launch | None:
        launch = super().launch(name, token)
        return launch and replace(launch, gpus=self.wanted[0], gang=self.wanted[1])


GANG = Gang(("--nnodes", "{nnodes}", "--node-rank", "{rank}"), ("--headless",))


@pytest.mark.parametrize(
    ("gpus", "nodes", "each"),
    [(1, 1, 1), (8, 1, 8), (12, 2, 6), (16, 2, 8), (20, 4, 5)],
)
def test_a_replica_above_one_nodes_gpus_is_one_gang_in_equal_parts(gpus: int, nodes: int, each: int) -> None:
    scripted = Scripted([[_gone(lost=Lost.NODE)]], nodes=("a", "b", "c", "d"), gpus=8)
    with pytest.raises(EngineStartError), running(Split(gpus, GANG), scripted, restarts=0):
        pass
    (spec,) = scripted.started
    assert (spec.shape.nodes, spec.shape.gpus_per_node) == (nodes, each)
    assert (spec.argv[-4:] == GANG.every, spec.followers == GANG.followers) == ((nodes > 1,) * 2)


@pytest.mark.parametrize(
    ("gpus", "gang", "says"),
    [
        (16, None, "role/0 asks for 16 GPUs; the largest node has 8, and its engine runs on one node"),
        (24, GANG, "role/0 asks for 24 GPUs; the largest node has 8, and there are no 3 nodes with 8"),
        (11, GANG, "role/0 asks for 11 GPUs; the largest node has 8, and there are no 11 nodes with 1"),
    ],
)
def test_a_replica_that_cannot_be_spread_is_refused(gpus: int, gang: Gang | None, says: str) -> None:
    scripted = Scripted([], nodes=("a", "b"), gpus=8)
    with pytest.raises(CannotFit, match=says), running(Split(gpus, gang), scripted):
        pass


A_NODE = NodeFree("a", gpus_total=8, gpus_free=0, cpus_total=16, mem_gb_total=100.0)


@pytest.mark.parametrize(
    ("nodes", "launch", "needs", "says"),
    [
        (
            [replace(A_NODE, cpus_total=2, cpu_share=16)],
            Launch(()),
            Needs(),
            r"100000 replicas of 1 CPU do not fit: .* has 2 CPUs for 16 servers each on 1 node, room for 32\."
            r"\nAsk for fewer replicas or smaller ones \(--backend=ENGINE:d32\)\.",
        ),
        (
            [A_NODE, A_NODE],
            Launch((), gpus=1),
            Needs(cpus_per_gpu=8),
            r"100000 replicas of 1 GPU and 8 CPUs do not fit: .* has 16 GPUs and 32 CPUs on 2 nodes, room for 4\."
            r"\n.* or reserve less for each \(--server-cpus=N, --server-mem=GB\)\.",
        ),
        ([A_NODE], Launch((), gpus=2), Needs(mem_gb_per_gpu=20.0), r"2 GPUs and 1 CPU and 40 GB .* room for 2\."),
        ([A_NODE], Launch((), gpus=12, gang=GANG), Needs(), r"12 GPUs .* room for 0\.\n.*ENGINE:dN"),
        ([replace(A_NODE, cpus_total=None)], Launch((), gpus=1), Needs(), r"has 8 GPUs on 1 node, room for 8\."),
    ],
)
def test_replicas_that_can_never_all_be_up_are_refused(
    nodes: list[NodeFree], launch: Launch, needs: Needs, says: str
) -> None:
    """Those beyond would wait for the others' end, which is the run's."""
    scripted = Scripted([])
    scripted.nodes = tuple(replace(node, name=f"n{index}") for index, node in enumerate(nodes))
    with pytest.raises(CannotFit, match=says):
        Placement(scripted, needs).check([launch] * 100_000)


@pytest.mark.parametrize(
    ("node", "is_room"),
    [
        ({}, True),
        ({"gpus_free": 1}, False),
        ({"cpus_free": 7}, False),
        ({"usable": False}, False),
        ({"name": "lost"}, False),
        ({"name": "given-up"}, False),
    ],
)
def test_there_is_room_where_another_usable_node_has_free_what_a_replica_needs(
    node: dict[str, Any], is_room: bool
) -> None:
    scripted = Scripted([])
    scripted.nodes = (
        replace(A_NODE, gpus_free=0),
        replace(A_NODE, **{"name": "b", "gpus_free": 2, "cpus_free": 8} | node),
    )
    placement = Placement(scripted, Needs(cpus_per_gpu=4))
    placement.excluded = frozenset({"given-up"})
    assert placement.is_room("r", Launch((), gpus=2), {"lost"}) is is_room


def test_what_servers_are_given_beyond_their_engines_wishes() -> None:
    needs = Needs(env={"NCCL_DEBUG": "WARN", "AREAL_EVAL_TOKEN": "x"}, cpus_per_gpu=6, mem_gb_per_gpu=40.0)
    scripted = Scripted([[_gone(lost=Lost.NODE)]], nodes=("a",), gpus=8)
    with pytest.raises(EngineStartError), running(Split(2, None), scripted, restarts=0, needs=needs):
        pass
    (spec,) = scripted.started
    assert spec.env["NCCL_DEBUG"] == "WARN"
    assert spec.env["AREAL_EVAL_TOKEN"] != "x"
    assert (spec.shape.cpus_per_node, spec.shape.mem_gb_per_node) == (12, 80.0)


def test_a_scheduler_that_stops_answering_does_not_end_a_run_that_goes_well() -> None:
    events: list[Event] = []
    with in_thread(nonce="n", latency_s=0.02) as server:
        scripted = Scripted([[_up(server.port), SchedulerError("slurmctld does not answer")]])
        with running(StandinEngine(), scripted, events.append) as controller:
            for _ in range(8):
                assert {r.reward for r in run_rows(controller, 100)} == {1.0}
            assert controller.failure is None
    assert any(e.kind == "warning" and "slurmctld" in e.text for e in events)


def test_a_scheduler_that_never_answers_fails_the_start() -> None:
    scripted = Scripted([[SchedulerError("slurmctld does not answer")]])
    with pytest.raises(SchedulerError, match="slurmctld does not answer"), running(StandinEngine(), scripted):
        pass


def test_a_listener_of_events_that_raises_stops_the_run() -> None:
    def broken(event: Event) -> None:
        raise OSError("terminal is gone")

    with in_thread(nonce="n") as server, running(StandinEngine(), Scripted([[_up(server.port)]]), broken) as controller:
        assert "terminal is gone" in str(controller.failure)


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({}, ()),
        ({"tp_size": 2, "seed": None}, ("--tp-size", "2")),
        ({"enable_metrics": True, "disable_radix_cache": False}, ("--enable-metrics",)),
        ({"cuda_graph_bs": [1, 2]}, ("--cuda-graph-bs", "1", "2")),
    ],
)
def test_server_arguments_become_flags(arguments: Mapping[str, Any], flags: tuple[str, ...]) -> None:
    assert as_flags(arguments) == flags
