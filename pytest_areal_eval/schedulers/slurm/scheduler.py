"""The Slurm scheduler: what was started, what became of it, and how it ends.

Invariant: every instance that was started ends when it is stopped, when this process closes the scheduler, and when
this process is gone: its agent watches the lease.  Slurm says why an instance waits or was taken away; the files of
its agent say where it listens and how it ended by itself.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_areal_eval.errors import CannotFit, SchedulerError
from pytest_areal_eval.schedulers import logs, postmortem
from pytest_areal_eval.schedulers.base import Address, Capacity, Handle, InstanceSpec, Lost, State, Status
from pytest_areal_eval.schedulers.rendezvous import Event, Rendezvous
from pytest_areal_eval.schedulers.slurm.jobs import Jobs
from pytest_areal_eval.schedulers.slurm.launcher import Ending, Launcher, Seen
from pytest_areal_eval.schedulers.slurm.options import SlurmOptions, check_installed
from pytest_areal_eval.schedulers.slurm.steps import Steps

GRACE_S = 10.0
LEASE_S = 120.0
NOW_LIMIT_S = 3.0
CANCEL_LIMIT_S = 10.0
CAPACITY_PAUSE_S = 10.0


@dataclass
class _Instance:
    handle: Handle
    key: str
    nonce: str
    spec: InstanceSpec
    started: float
    stopped: bool = False
    address: Address | None = None
    final: Status | None = None

    @property
    def gpus(self) -> int:
        return self.spec.shape.nodes * self.spec.shape.gpus_per_node


class SlurmScheduler:
    """Starts, watches and stops instances through Slurm.

    Each is a job of its own, so that one can wait, run or be lost without the others; inside an allocation
    (``SLURM_JOB_ID`` is set) each is a step on a part of it.

    Args:
        shared_dir: a folder that this machine and the nodes see; a folder for this run is made in it.
        options: how to submit.
        lease_s: how long servers live on when this process is gone without having closed the scheduler.

    Raises:
        ConfigError: this machine has no Slurm, or submitit is not installed.
    """

    name = "slurm"

    def __init__(self, *, shared_dir: Path, options: SlurmOptions | None = None, lease_s: float = LEASE_S) -> None:
        check_installed()
        self._options = options or SlurmOptions()
        self._options.further()
        run_name = f"areal-eval-{secrets.token_hex(3)}"
        self._shared = Rendezvous(shared_dir / run_name, lease_s, GRACE_S)
        allocation = os.environ.get("SLURM_JOB_ID")
        self._launcher: Launcher = (
            Steps(allocation, self._shared.jobs, run_name, self._options.srun_args)
            if allocation
            else Jobs(self._options, self._shared.jobs, run_name)
        )
        self._owner = os.getpid()
        self._instances: dict[Handle, _Instance] = {}
        self._attempts: Counter[str] = Counter()
        self._capacity: tuple[float, Capacity] = (-CAPACITY_PAUSE_S, Capacity(()))
        self._closed = threading.Event()
        atexit.register(self.close)

    def capacity(self) -> Capacity:
        """The nodes of the partition, or of the allocation; asked anew every 10 s."""
        asked_at, capacity = self._capacity
        if time.monotonic() - asked_at >= CAPACITY_PAUSE_S:
            capacity = Capacity(tuple(self._launcher.nodes()))
            self._capacity = time.monotonic(), capacity
        return capacity

    def start(self, spec: InstanceSpec, exclude: Collection[str] = ()) -> Handle:
        """Submit an instance and return its handle, whose id is the job's (or the step's launcher's process).

        Raises:
            CannotFit: it asks for more than there is, or sbatch refuses it.
            ConfigError: the shared folder cannot be written, or there is no such partition.
            SchedulerError: Slurm does not answer.
        """
        if self._closed.is_set():
            raise SchedulerError(f"{spec.name} cannot start: the Slurm scheduler is closed.")
        self._check_fits(spec, exclude)
        self._shared.open()
        self._attempts[spec.name] += 1
        attempt, nonce = self._attempts[spec.name], secrets.token_hex(8)
        key = f"{re.sub(r'[^A-Za-z0-9_-]', '_', spec.name)}-{attempt}"
        prefixed = replace(spec, argv=self._options.prefix + spec.argv)
        agent = self._shared.invite(key, prefixed, nonce, self._launcher.own_jobs)
        handle = Handle(spec.name, attempt, self._launcher.submit(key, spec, agent, exclude))
        self._instances[handle] = _Instance(handle, key, nonce, spec, time.monotonic())
        if self._closed.is_set():  # meanwhile, by another thread that did not see this instance
            self.stop([handle])
        return handle

    def poll(self, handles: Sequence[Handle]) -> dict[Handle, Status]:
        """State of each, from the agents' files and one squeue.

        Raises:
            SchedulerError: Slurm or the shared folder does not answer; the servers go on.
        """
        asked = [self._instances[handle] for handle in handles if handle in self._instances]
        running = [instance for instance in asked if instance.final is None]
        events = self._shared.events() if running else {}
        seen = self._launcher.look([instance.handle.id for instance in running])
        for instance in running:
            self._learn(instance, seen[instance.handle.id], events.get(instance.key, []))
        return {handle: self._status(handle, seen) for handle in handles}

    def stop(self, handles: Sequence[Handle], grace_s: float = GRACE_S) -> None:
        """End instances: SIGTERM to all that they started, SIGKILL after ``grace_s`` (10 s at most).

        Raises:
            SchedulerError: Slurm still has some of them 10 s after it was told to end them itself.
        """
        ending = [self._instances[handle] for handle in handles if handle in self._instances]
        for instance in ending:
            instance.stopped = instance.stopped or instance.final is None
        left = self._launcher.alive([instance.handle.id for instance in ending])
        complaint = ""
        stages: list[tuple[Ending, float]] = [("TERM", grace_s), ("NOW", NOW_LIMIT_S), ("CANCEL", CANCEL_LIMIT_S)]
        for how, limit_s in stages:
            if left:
                complaint = self._launcher.end(left, how)
                left = self._wait(left, min(limit_s, GRACE_S))
        if left:
            raise SchedulerError(
                f"Slurm still has {', '.join(left)} {CANCEL_LIMIT_S:g} s after it was told to end them. {complaint}",
                f"End them by hand: scancel {' '.join(left)}",
            )
        if ending:
            self.poll([instance.handle for instance in ending])

    def log_tail(self, handle: Handle, lines: int = 50) -> str:
        """The end of an instance's log, or of its job's output where no server was started."""
        return logs.tail(self.log_path(handle), lines, logs.secrets_of(self._known(handle).spec.env))

    def log_path(self, handle: Handle) -> str:
        """Where that log is."""
        log, output = self._shared.log(self._known(handle).key), self._launcher.output(handle.id)
        return str(output) if output.exists() and not os.path.exists(log) else log

    def close(self) -> None:
        """Stop every instance and tidy the shared folder; logs stay.  A second call does nothing, nor one in a fork."""
        if self._closed.is_set() or os.getpid() != self._owner:
            return
        self._closed.set()
        atexit.unregister(self.close)
        try:
            self.stop(list(self._instances))
        finally:
            self._shared.close()  # ends the lease, and with it whatever Slurm did not let us stop

    def _check_fits(self, spec: InstanceSpec, exclude: Collection[str]) -> None:
        shape, place = spec.shape, self._launcher.place + (f" without {', '.join(sorted(exclude))}" if exclude else "")
        nodes = [node for node in self.capacity().nodes if node.name not in exclude]
        if shape.nodes > len(nodes):
            raise CannotFit(f"{spec.name} asks for {shape.nodes} nodes; {place} has {len(nodes)}.")
        largest = max((node.gpus_total for node in nodes), default=0)
        if shape.gpus_per_node > largest:
            raise CannotFit(
                f"{spec.name} asks for {shape.gpus_per_node} GPUs on a node; the largest of {place} has {largest}.",
                "Spread the replica over several nodes or ask for another partition: --slurm-partition=NAME",
            )
        total = sum(node.gpus_total for node in nodes)
        running = [one for one in list(self._instances.values()) if one.final is None and not one.stopped]
        ours = sum(one.gpus for one in running if one.address is None or not {*exclude}.intersection(one.address.nodes))
        wanted = shape.nodes * shape.gpus_per_node
        if wanted and ours + wanted > total:
            raise CannotFit(
                f"{spec.name} asks for {wanted} GPUs beside the {ours} that this run has; {place} has {total}.",
                "Ask for fewer replicas.",
            )

    def _learn(self, instance: _Instance, seen: Seen, events: list[Event]) -> None:
        instance.address = self._shared.address(instance.key, instance.nonce, events) or instance.address
        ends = [event for event in events if event.kind == "end" and event.facts["why"] != "asked"]
        if instance.stopped and seen.state == "gone":
            seconds = time.monotonic() - instance.started
            instance.final = self._gone(instance, Lost.CANCELLED, f"stopped after {seconds:.1f} s")
        elif ends and not instance.stopped:
            instance.final = self._ended(instance, min(ends, key=lambda end: end.facts["at"]))
        elif seen.state == "gone":
            instance.final = self._taken(instance, seen, heard=bool(events))

    def _ended(self, instance: _Instance, end: Event) -> Status:
        """By itself, as its agent says."""
        if end.facts["why"] == "failed":
            return self._gone(instance, Lost.EXITED, f"{end.node}: {end.facts['error']}", 1, end.node)
        if end.facts["why"] == "lease":
            why = f"{end.node} saw the lease stand still; is the shared folder slow, or was this process stopped?"
            return self._gone(instance, Lost.CANCELLED, why)
        tail = logs.tail(self._shared.log(instance.key, end.rank), 20, logs.secrets_of(instance.spec.env))
        facts = end.facts
        lost, code, reason = postmortem.explain(facts["code"], tail, seconds=facts["seconds"], oom=facts["oom"])
        where = f"rank {end.rank} on {end.node} " if instance.spec.shape.nodes > 1 else ""
        return self._gone(instance, lost, where + reason, code, end.node)

    def _taken(self, instance: _Instance, seen: Seen, heard: bool) -> Status:
        """By Slurm, or before its agent could say anything."""
        if heard or seen.lost is not Lost.EXITED:
            return self._gone(instance, seen.lost or Lost.UNKNOWN, seen.reason, node=seen.node)
        output = self._launcher.output(instance.handle.id)
        if output.exists():
            said = logs.tail(str(output), 1).strip() or "nothing"
            return self._gone(
                instance, Lost.EXITED, f"{seen.reason} before its server was started; it said: {said}", node=seen.node
            )
        why = f"{seen.reason} and wrote nothing into {self._shared.folder}: do nodes see it? --shared-dir=DIR"
        return replace(self._gone(instance, Lost.EXITED, why), never=True)

    def _gone(self, instance: _Instance, lost: Lost, reason: str, code: int | None = None, node: str = "") -> Status:
        return Status(State.GONE, reason, address=instance.address, lost=lost, exit_code=code, node=node)

    def _status(self, handle: Handle, seen: dict[str, Seen]) -> Status:
        instance = self._instances.get(handle)
        if instance is None:
            return Status(State.GONE, f"{handle.name} was not started by this scheduler", lost=Lost.UNKNOWN)
        if instance.final is not None:
            return instance.final
        if instance.address is not None:
            return Status(State.UP, address=instance.address)
        now = seen[handle.id]
        state = State.WAITING if now.state == "waiting" else State.STARTING
        return Status(state, now.reason, never=now.never)

    def _wait(self, ids: Sequence[str], limit_s: float) -> list[str]:
        """Until all of them have ended, or the limit; returns what is left."""
        deadline, pause_s = time.monotonic() + limit_s, 0.05
        while left := self._launcher.alive(ids):
            if time.monotonic() >= deadline:
                break
            time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            pause_s = min(1.0, pause_s * 1.5)
        return left

    def _known(self, handle: Handle) -> _Instance:
        if handle not in self._instances:
            raise SchedulerError(f"{handle.name} (attempt {handle.attempt}) was not started by this scheduler.")
        return self._instances[handle]
