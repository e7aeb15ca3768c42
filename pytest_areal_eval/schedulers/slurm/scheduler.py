"""The Slurm scheduler: what was started, what became of it, and how it ends.

Invariant: every instance that was started ends when it is stopped, when this process closes the scheduler, and when
this process is gone: its agent watches the lease.  Slurm says why an instance waits or was taken away; the files of
its agent say where it listens and how it ended by itself.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_areal_eval.errors import CannotFit, SchedulerError
from pytest_areal_eval.schedulers import logs
from pytest_areal_eval.schedulers.base import GRACE_S, LEASE_S, Capacity, Handle, InstanceSpec, State, Status
from pytest_areal_eval.schedulers.rendezvous import Rendezvous
from pytest_areal_eval.schedulers.roster import Roster
from pytest_areal_eval.schedulers.slurm.instance import Instance, learn
from pytest_areal_eval.schedulers.slurm.jobs import Jobs
from pytest_areal_eval.schedulers.slurm.launcher import Ending, Launcher, Seen
from pytest_areal_eval.schedulers.slurm.options import SlurmOptions, check_installed
from pytest_areal_eval.schedulers.slurm.steps import Steps

NOW_LIMIT_S = 3.0
CANCEL_LIMIT_S = 10.0
CAPACITY_PAUSE_S = 10.0


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
        self._roster: Roster[Instance] = Roster(self)
        self._capacity: tuple[float, Capacity] = (-CAPACITY_PAUSE_S, Capacity(()))

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
        self._roster.check_open(spec.name)
        self._check_fits(spec, exclude)
        self._shared.open()
        attempt, nonce = self._roster.next_attempt(spec.name), secrets.token_hex(8)
        key = f"{re.sub(r'[^A-Za-z0-9_-]', '_', spec.name)}-{attempt}"
        prefixed = replace(spec, argv=self._options.prefix + spec.argv)
        agent = self._shared.invite(key, prefixed, nonce, self._launcher.own_jobs)
        handle = Handle(spec.name, attempt, self._launcher.submit(key, spec, agent, exclude))
        return self._roster.add(Instance(handle, key, nonce, spec, time.monotonic()))

    def poll(self, handles: Sequence[Handle]) -> dict[Handle, Status]:
        """State of each, from the agents' files and one squeue.

        Raises:
            SchedulerError: Slurm or the shared folder does not answer; the servers go on.
        """
        running = [instance for instance in self._roster.of(handles) if instance.final is None]
        events = self._shared.events() if running else {}
        ended = any(event.kind == "end" for instance in running for event in events.get(instance.key, []))
        seen = self._launcher.look([instance.handle.id for instance in running], anew=ended)
        for instance in running:
            learn(instance, seen[instance.handle.id], events.get(instance.key, []), self._shared, self._launcher)
        return {handle: self._status(handle, seen) for handle in handles}

    def stop(self, handles: Sequence[Handle], grace_s: float = GRACE_S) -> None:
        """End instances: SIGTERM to all that they started, SIGKILL after ``grace_s`` (10 s at most).

        Raises:
            SchedulerError: Slurm still has some of them 10 s after it was told to end them itself.
        """
        ending = self._roster.of(handles)
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
        return logs.tail(self.log_path(handle), lines, logs.secrets_of(self._roster.known(handle).spec.env))

    def log_path(self, handle: Handle) -> str:
        """Where that log is."""
        log, output = self._shared.log(self._roster.known(handle).key), self._launcher.output(handle.id)
        return str(output) if output.exists() and not os.path.exists(log) else log

    def close(self) -> None:
        """Stop every instance and tidy the shared folder; logs stay.  A second call does nothing, nor one in a fork."""
        if not self._roster.begin_to_close():
            return
        try:
            self.stop([instance.handle for instance in self._roster.all()])
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
        cpus = max((node.cpus_total or shape.cpus_per_node for node in nodes), default=0)
        if shape.cpus_per_node > cpus:
            raise CannotFit(
                f"{spec.name} asks for {shape.cpus_per_node} CPUs on a node; the largest of {place} has {cpus}.",
                "Reserve fewer for each GPU: --server-cpus=N",
            )
        memory_gb, asked_gb = max((node.mem_gb_total or math.inf for node in nodes), default=0), shape.mem_gb_per_node
        if asked_gb is not None and asked_gb > memory_gb:
            raise CannotFit(
                f"{spec.name} asks for {asked_gb:g} GB on a node; the largest of {place} has {memory_gb:g}.",
                "Reserve less for each GPU: --server-mem=GB",
            )
        total = sum(node.gpus_total for node in nodes)
        running = [one for one in self._roster.all() if one.final is None and not one.stopped]
        ours = sum(one.gpus for one in running if one.address is None or not {*exclude}.intersection(one.address.nodes))
        wanted = shape.nodes * shape.gpus_per_node
        if wanted and ours + wanted > total:
            raise CannotFit(
                f"{spec.name} asks for {wanted} GPUs beside the {ours} that this run has; {place} has {total}.",
                "Ask for fewer replicas.",
            )

    def _status(self, handle: Handle, seen: dict[str, Seen]) -> Status:
        instance = self._roster.find(handle)
        if isinstance(instance, Status):
            return instance
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
