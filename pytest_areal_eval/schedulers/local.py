"""Instances as processes of this machine, each under ``supervise.py``.

Invariant: all that an instance started goes when it is stopped, and when this process ends, however that happens.  The
locks on its GPUs and its port are held by its own processes, so that they are free when, and only when, those are gone.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pytest_areal_eval.errors import CannotFit, SchedulerError
from pytest_areal_eval.schedulers import gpus as devices
from pytest_areal_eval.schedulers import locks, logs, ports, postmortem, processes, supervise
from pytest_areal_eval.schedulers.base import (
    GRACE_S,
    Address,
    Capacity,
    Handle,
    InstanceSpec,
    Lost,
    NodeFree,
    State,
    Status,
)
from pytest_areal_eval.schedulers.roster import Roster

HOST = "127.0.0.1"
CPU_SHARE = 16
"""How many servers of one CPU are started for each CPU of this machine; more would only wait for each other."""

_THIS_PROCESS_ONLY = ("PYTEST_", "COVERAGE_", "COV_CORE_")


@dataclass
class _Instance:
    handle: Handle
    address: Address
    process: subprocess.Popen[bytes]
    locks: tuple[Path, ...]
    secrets: tuple[str, ...]
    started: float
    stopped: bool = False
    final: Status | None = None

    @property
    def gpus(self) -> int:
        return len(self.address.gpus[0])


class LocalScheduler:
    """Starts, watches and stops instances on this machine.

    Its methods may be called from several threads and from a signal handler: none of them waits for another.  An
    instance that asks for no GPU is given an empty CUDA_VISIBLE_DEVICES, lest it sit on another one's.

    Args:
        log_dir: folder of the instances' logs, ``<name>.<attempt>.log``; made if missing.
        gpus: the devices to use, as CUDA_VISIBLE_DEVICES tokens; by default what that variable names, else all that
            NVIDIA's driver lists.
        lock_dir: folder where runs on this machine keep their locks; by default one per user.
    """

    name = "local"

    def __init__(self, *, log_dir: Path, gpus: Sequence[str] | None = None, lock_dir: Path | None = None) -> None:
        self._log_dir = log_dir.absolute()
        self._mask = None if gpus is None else ",".join(gpus)
        self._lock_dir = lock_dir
        self._visible: devices.Visible | None = None
        self._node = socket.gethostname()
        self._roster: Roster[_Instance] = Roster(self)
        self._oom_kills = postmortem.oom_kills()

    def capacity(self) -> Capacity:
        """This machine; a GPU that any run of this user holds is not free, and CPUs are shared by up to 16 servers."""
        gpus = self._gpus().gpus
        free = sum(locks.is_free(self._locks(), gpu.key) for gpu in gpus)
        cpus = len(os.sched_getaffinity(0))
        here = NodeFree(self._node, gpus_total=len(gpus), gpus_free=free, cpus_total=cpus, cpu_share=CPU_SHARE)
        return Capacity((here,))

    def start(self, spec: InstanceSpec, exclude: Collection[str] = ()) -> Handle:
        """Start an instance and return its handle, whose id is the pid of its supervisor.

        Raises:
            CannotFit: it asks for more nodes or GPUs than there are, or this machine is excluded.
            SchedulerError: other runs hold the GPUs, no port is free, or the process cannot be started.
        """
        self._roster.check_open(spec.name)
        self._check_fits(spec, exclude)
        holder = f"{spec.name} of process {os.getpid()} since {time.strftime('%H:%M:%S')}"
        with ExitStack() as held:
            gpus: dict[str, locks.Lock] = {}
            if spec.shape.gpus_per_node:
                gpus = devices.take(self._gpus(), spec.shape.gpus_per_node, self._locks(), holder, held)
            port, port_lock = ports.pick(self._locks(), holder)
            held.enter_context(port_lock)
            instance = self._spawn(spec, port, tuple(gpus), [*gpus.values(), port_lock])
        return self._roster.add(instance)

    def poll(self, handles: Sequence[Handle]) -> dict[Handle, Status]:
        """State of each: UP while its process runs, else GONE with the reason."""
        kills = postmortem.oom_kills()
        oom, self._oom_kills = kills > self._oom_kills, kills
        return {handle: self._status(handle, oom) for handle in handles}

    def stop(self, handles: Sequence[Handle], grace_s: float = GRACE_S) -> None:
        """End instances: SIGTERM to all that they started, SIGKILL after ``grace_s`` (10 s at most).

        Raises:
            SchedulerError: something is left 5 s after SIGKILL.
        """
        ending = self._roster.of(handles)
        for instance in ending:
            instance.stopped = instance.stopped or instance.process.poll() is None
        processes.end({instance.address.nonce: instance.process for instance in ending}, min(grace_s, GRACE_S))
        for instance in ending:
            for path in instance.locks:
                locks.discard(path)

    def log_tail(self, handle: Handle, lines: int = 50) -> str:
        """The end of an instance's log; the values of keys and tokens in ``spec.env`` are blotted out."""
        instance = self._roster.known(handle)
        return logs.tail(instance.address.log_path, lines, instance.secrets)

    def log_path(self, handle: Handle) -> str:
        """Where that log is."""
        return self._roster.known(handle).address.log_path

    def close(self) -> None:
        """Stop every instance.  A second call does nothing, nor does one in a fork of the process that owns them."""
        if self._roster.begin_to_close():
            self.stop([instance.handle for instance in self._roster.all()])

    def _check_fits(self, spec: InstanceSpec, exclude: Collection[str]) -> None:
        if spec.shape.nodes > 1:
            raise CannotFit(
                f"{spec.name} asks for {spec.shape.nodes} nodes; the local scheduler has 1.",
                "Use --scheduler=ray or --scheduler=slurm, or a backend that fits one machine.",
            )
        if self._node in exclude:
            raise CannotFit(f"{spec.name} has nowhere to run: {self._node}, the only machine here, is excluded.")
        wanted = spec.shape.gpus_per_node
        if wanted == 0:
            return
        here = self._gpus()
        running = [one for one in self._roster.all() if one.gpus and one.process.poll() is None]
        if wanted > len(here.gpus) - sum(one.gpus for one in running):
            held = "".join(f", {one.handle.name} has {one.gpus}" for one in running)
            raise CannotFit(
                f"{spec.name} asks for {devices.counted(wanted)}; this machine has {len(here.gpus)} "
                f"({here.source}){held}.",
                "Ask for fewer GPUs, or use --scheduler=ray or --scheduler=slurm.",
            )

    def _spawn(self, spec: InstanceSpec, port: int, gpus: tuple[str, ...], held: Sequence[locks.Lock]) -> _Instance:
        attempt = self._roster.next_attempt(spec.name)
        log = self._log_dir / f"{spec.name.replace('/', '_')}.{attempt}.log"
        nonce = secrets.token_hex(8)
        values = {"{host}": HOST, "{port}": str(port), "{nonce}": nonce}
        env = self._environment(spec, values, gpus)
        supervisor = [sys.executable, "-I", "-S", supervise.__file__, str(os.getpid()), str(GRACE_S), "--"]
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            with open(log, "ab") as output:
                output.truncate(0)  # an earlier run's
                process = subprocess.Popen(
                    [*supervisor, *(_fill(word, values) for word in spec.argv)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=env,
                    start_new_session=True,
                    pass_fds=[lock.fd for lock in held],
                )
        except OSError as error:
            raise SchedulerError(f"{spec.name} cannot be started with its log in {log}: {error}.") from error
        return _Instance(
            handle=Handle(spec.name, attempt, str(process.pid)),
            address=Address(HOST, port, nonce, str(log), nodes=(self._node,), gpus=(gpus,)),
            process=process,
            locks=tuple(lock.path for lock in held),
            secrets=logs.secrets_of(spec.env),
            started=time.monotonic(),
        )

    def _environment(self, spec: InstanceSpec, values: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(_THIS_PROCESS_ONLY)}
        env |= {name: _fill(value, values) for name, value in spec.env.items()}
        env |= {processes.MARK: values["{nonce}"], "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        if gpus and self._gpus().by_bus_order:
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as the driver counts; CUDA's own order is by speed
        return env

    def _status(self, handle: Handle, oom: bool) -> Status:
        instance = self._roster.find(handle)
        if isinstance(instance, Status):
            return instance
        status = instance.process.poll()
        if status is None:
            return Status(State.UP, address=instance.address)
        if instance.final is None:
            seconds = time.monotonic() - instance.started
            lost, code, reason = postmortem.explain(status, self.log_tail(handle), seconds=seconds, oom=oom)
            if instance.stopped:
                lost, reason = Lost.CANCELLED, f"stopped after {seconds:.1f} s"
            instance.final = Status(State.GONE, reason, address=instance.address, lost=lost, exit_code=code)
        return instance.final

    def _gpus(self) -> devices.Visible:
        if self._visible is None and self._mask is None:
            self._visible = devices.visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        elif self._visible is None:
            self._visible = devices.visible(self._mask, origin="gpus")
        return self._visible

    def _locks(self) -> Path:
        return locks.runtime_folder() if self._lock_dir is None else self._lock_dir


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders; other braces (JSON in an argument) stay."""
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text
