"""Instances as actors of a Ray cluster, each in a placement group of its own.

The connection to Ray lives in a process of its own (``driver.py``), which Ray may end or leave hanging; ``node.py`` is
what runs on the nodes.  Invariant: when this process is gone, however it ended, the driver is, then the actors, then
their servers.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.schedulers import logs, postmortem, processes
from pytest_areal_eval.schedulers.base import (
    Address,
    Capacity,
    Handle,
    InstanceSpec,
    Lost,
    NodeFree,
    Shape,
    State,
    Status,
)
from pytest_areal_eval.schedulers.ray.address import LOCAL, check, own_address, resolve
from pytest_areal_eval.schedulers.ray.connection import Connection
from pytest_areal_eval.schedulers.ray.fit import bundle_of, check_fits, waiting

CONNECT_LIMIT_S = 30.0
LOCAL_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
GRACE_S = 10.0

_LOST = {
    "node": Lost.NODE,
    "preempted": Lost.PREEMPTED,
    "cancelled": Lost.CANCELLED,
    "oom": Lost.OOM,
    "killed": Lost.KILLED,
    "failed": Lost.UNKNOWN,
}


@dataclass
class _Instance:
    handle: Handle
    shape: Shape
    nonce: str
    log: str
    secrets: tuple[str, ...]
    started: float
    final: Status | None = None


class RayScheduler:
    """Starts, watches and stops instances on a Ray cluster.

    Connects when it is first asked for something.  A server gets the environment of its node, not of this machine,
    and this machine's Python stands for the node's.

    Args:
        log_dir: folder of this machine to which the instances' logs are copied, ``<name>.<attempt>.log``.
        address: ``host:port`` of the cluster's head, ``auto`` for the cluster that Ray's own address file names,
            ``local`` or None to start one here.
        runtime_env: Ray's description of what the nodes need, passed on.
        elastic: an autoscaler can add nodes, so what does not fit now is waited for.
    """

    name = "ray"

    def __init__(
        self,
        *,
        log_dir: Path,
        address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        elastic: bool = False,
    ) -> None:
        self._log_dir = log_dir.absolute()
        self._address = resolve(address)
        self._runtime_env = runtime_env
        self._elastic = elastic
        self._owner = os.getpid()
        self._driver: Connection | None = None
        self._connecting = threading.Lock()
        self._connected = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._device = "GPU"
        self._instances: dict[Handle, _Instance] = {}
        self._attempts: Counter[str] = Counter()
        self._closed = threading.Event()
        atexit.register(self.close)

    def capacity(self) -> Capacity:
        """The cluster's nodes and accelerators."""
        nodes = [
            NodeFree(
                node["name"],
                gpus_total=int(node["total"].get(self._device, 0)),
                gpus_free=int(node["free"].get(self._device, 0)),
                usable=node["alive"],
                why_not=node["why_not"],
            )
            for node in self._nodes()
        ]
        return Capacity(tuple(nodes), elastic=self._elastic)

    def start(self, spec: InstanceSpec, exclude: Collection[str] = ()) -> Handle:
        """Queue an instance and return its handle, whose id is that of its placement group.

        Raises:
            CannotFit: no nodes of the cluster can ever hold it beside this run's others.
            SchedulerError: the cluster does not answer, or the log cannot be written.
        """
        if self._closed.is_set():
            raise SchedulerError(f"{spec.name} cannot start: the Ray scheduler is closed.")
        nodes = [node for node in self._nodes() if node["alive"]]
        bundle = bundle_of(spec.shape, self._device)
        if not self._elastic:
            running = sum(one.final is None for one in self._instances.values())
            check_fits(spec, bundle, [node for node in nodes if node["name"] not in exclude], running, self._address)
        self._attempts[spec.name] += 1
        attempt, nonce = self._attempts[spec.name], secrets.token_hex(8)
        log = self._fresh_log(spec.name, attempt)
        order = {
            "name": spec.name,
            "attempt": attempt,
            "log": log,
            "nonce": nonce,
            "argv": spec.argv,
            "followers": spec.followers,
            "env": {**spec.env, processes.MARK: nonce},
            "python": sys.executable,
            "bundle": bundle,
            "nodes": spec.shape.nodes,
            "device": self._device,
            "exclude": [node["id"] for node in nodes if node["name"] in exclude],
        }
        handle = Handle(spec.name, attempt, self._connection().ask("start", order=order))
        hidden = logs.secrets_of(spec.env)
        self._instances[handle] = _Instance(handle, spec.shape, nonce, log, hidden, time.monotonic())
        if self._closed.is_set():  # meanwhile, by another thread
            self.stop([handle])
        return handle

    def poll(self, handles: Sequence[Handle]) -> dict[Handle, Status]:
        """State of each: WAITING for its placement group, STARTING on its node, UP while it runs, else GONE."""
        known = [self._instances[handle] for handle in handles if handle in self._instances]
        live = [one for one in known if one.final is None]
        facts = self._connection().ask("poll") if live else {}
        waits = any(facts[one.handle.id]["state"] == "waiting" for one in live)
        nodes = self._nodes() if waits else []
        return {handle: self._status(handle, facts.get(handle.id), nodes) for handle in handles}

    def stop(self, handles: Sequence[Handle], grace_s: float = GRACE_S) -> None:
        """End instances: SIGTERM to all that they started, SIGKILL after ``grace_s`` (10 s at most)."""
        known = [self._instances[handle] for handle in handles if handle in self._instances]
        ending = [one for one in known if one.final is None]
        before: dict[str, Any] = {}
        if ending and self._driver is not None and self._driver.lives:
            grace_s, ids = min(grace_s, GRACE_S), [one.handle.id for one in ending]
            before = self._driver.ask("stop", limit_s=grace_s + STOP_LIMIT_S, ids=ids, grace_s=grace_s)
        for one in ending:
            if "end" in (facts := before.get(one.handle.id, {})):
                self._status(one.handle, facts, [])
            else:
                reason = f"stopped after {time.monotonic() - one.started:.1f} s"
                one.final = Status(State.GONE, reason, address=self._where(one, facts), lost=Lost.CANCELLED)

    def log_tail(self, handle: Handle, lines: int = 50) -> str:
        """The end of an instance's log; the values of keys and tokens in ``spec.env`` are blotted out."""
        one = self._known(handle)
        return logs.tail(one.log, lines, one.secrets)

    def log_path(self, handle: Handle) -> str:
        """Where that log is, on this machine; the other nodes of an instance add ``.1``, ``.2``."""
        return self._known(handle).log

    def close(self) -> None:
        """Stop every instance and leave the cluster.  A second call does nothing, nor does one in a fork."""
        if self._closed.is_set() or os.getpid() != self._owner:
            return
        self._closed.set()
        atexit.unregister(self.close)
        if self._driver is None:
            return
        try:
            if self._connected and self._driver.lives:
                self.stop(list(self._instances))
        finally:
            self._driver.end()
            if self._folder is not None:
                self._folder.cleanup()

    def _nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._connection().ask("nodes")
        return found

    def _connection(self) -> Connection:
        with self._connecting:
            if self._driver is None:
                check(self._address)
                self._driver = Connection(self._log_dir)
            if not self._connected:
                self._connect(self._driver)
        return self._driver

    def _connect(self, driver: Connection) -> None:
        limit_s = LOCAL_LIMIT_S if self._address == LOCAL else CONNECT_LIMIT_S
        where = {"address": self._address, "node_ip": own_address(self._address), "folder": ""}
        if self._address == LOCAL:
            self._folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
            where["folder"] = self._folder.name
        try:
            driver.ask("connect", limit_s, runtime_env=self._runtime_env, **where)
        except SchedulerError as error:
            driver.end()
            raise SchedulerError(
                f"Ray at {self._address} did not take this process in: {error.args[0]}",
                "pytest must run on a node of the cluster, with the cluster's versions of Ray and Python: ray status",
            ) from error
        self._connected = True
        kinds = [kind for node in driver.ask("nodes") for kind in node["total"]]
        self._device = "NPU" if "NPU" in kinds and "GPU" not in kinds else "GPU"

    def _fresh_log(self, name: str, attempt: int) -> str:
        log = self._log_dir / f"{name.replace('/', '_')}.{attempt}.log"
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            log.write_bytes(b"")  # an earlier run's
        except OSError as error:
            raise SchedulerError(f"{name} cannot be started with its log in {log}: {error}.") from error
        return str(log)

    def _status(self, handle: Handle, facts: Mapping[str, Any] | None, nodes: Sequence[Mapping[str, Any]]) -> Status:
        one = self._instances.get(handle)
        if one is None:
            return Status(State.GONE, f"{handle.name} was not started by this scheduler", lost=Lost.UNKNOWN)
        if one.final is not None or facts is None:
            return one.final or Status(State.WAITING, "Ray has not told yet")
        if "end" in facts:
            one.final = self._ended(one, facts)
            return one.final
        if facts["state"] == "waiting":
            return Status(State.WAITING, waiting(one.shape, facts["placement"], self._device, nodes))
        if facts["state"] == "starting":
            return Status(State.STARTING, "its node starts a Python process for it")
        return Status(State.UP, address=self._where(one, facts))

    def _ended(self, one: _Instance, facts: Mapping[str, Any]) -> Status:
        end, address = facts["end"], self._where(one, facts)
        if "code" not in end:
            return Status(State.GONE, end["text"], address=address, lost=_LOST[end["kind"]])
        text = logs.tail(one.log + (f".{end['rank']}" if end["rank"] else ""), 50, one.secrets)
        lost, code, reason = postmortem.explain(end["code"], text, seconds=end["seconds"], oom=end["oom"])
        reason = f"rank {end['rank']}: {reason}" if one.shape.nodes > 1 else reason
        where = facts["places"][end["rank"]]["name"]
        return Status(State.GONE, reason, address=address, lost=lost, exit_code=code, node=where)

    def _where(self, one: _Instance, facts: Mapping[str, Any]) -> Address | None:
        places = facts.get("places")
        if not places:
            return None
        return Address(
            places[0]["host"],
            places[0]["port"],
            one.nonce,
            one.log,
            nodes=tuple(place["name"] for place in places),
            gpus=tuple(tuple(place["devices"]) for place in places),
        )

    def _known(self, handle: Handle) -> _Instance:
        if handle not in self._instances:
            raise SchedulerError(f"{handle.name} (attempt {handle.attempt}) was not started by this scheduler.")
        return self._instances[handle]
