"""Instances as actors of a Ray cluster, each in a placement group of its own.

The connection to Ray lives in a process of its own (``driver.py``), which Ray may end or leave hanging; ``node.py`` is
what runs on the nodes.  Invariant: when this process is gone, however it ended, the driver is, then the actors, then
their servers.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_areal_eval.errors import ConfigError, SchedulerError
from pytest_areal_eval.schedulers import logs, processes
from pytest_areal_eval.schedulers.base import GRACE_S, LEASE_S, Capacity, Handle, InstanceSpec, NodeFree, Status
from pytest_areal_eval.schedulers.ray.address import LOCAL, check, own_address, resolve
from pytest_areal_eval.schedulers.ray.connection import Connection
from pytest_areal_eval.schedulers.ray.fit import bundle_of, check_fits
from pytest_areal_eval.schedulers.ray.instance import Instance
from pytest_areal_eval.schedulers.roster import Roster

CONNECT_LIMIT_S = 30.0
LOCAL_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0


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
        lease_s: how long servers live on when their nodes hear nothing of this process.
    """

    name = "ray"

    def __init__(
        self,
        *,
        log_dir: Path,
        address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        elastic: bool = False,
        lease_s: float = LEASE_S,
    ) -> None:
        self._log_dir = log_dir.absolute()
        self._address = resolve(address)
        self._runtime_env = runtime_env
        self._elastic = elastic
        self._lease_s = lease_s
        self._driver: Connection | None = None
        self._connecting = threading.Lock()
        self._connected = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._device = "GPU"
        self._roster: Roster[Instance] = Roster(self)

    def capacity(self) -> Capacity:
        """The cluster's nodes with their accelerators, CPUs and memory."""
        nodes = [
            NodeFree(
                node["name"],
                gpus_total=int(node["total"].get(self._device, 0)),
                gpus_free=int(node["free"].get(self._device, 0)),
                usable=node["alive"],
                why_not=node["why_not"],
                cpus_total=int(node["total"].get("CPU", 0)),
                cpus_free=int(node["free"].get("CPU", 0)),
                mem_gb_total=node["total"].get("memory", 0) / 1e9,
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
        self._roster.check_open(spec.name)
        nodes = [node for node in self._nodes() if node["alive"]]
        bundle = bundle_of(spec.shape, self._device)
        if not self._elastic:
            running = sum(one.final is None for one in self._roster.all())
            check_fits(spec, bundle, [node for node in nodes if node["name"] not in exclude], running, self._address)
        attempt, nonce = self._roster.next_attempt(spec.name), secrets.token_hex(8)
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
            "lease_s": self._lease_s,
            "bundle": bundle,
            "nodes": spec.shape.nodes,
            "device": self._device,
            "exclude": [node["id"] for node in nodes if node["name"] in exclude],
        }
        handle = Handle(spec.name, attempt, self._connection().ask("start", order=order))
        hidden = logs.secrets_of(spec.env)
        return self._roster.add(Instance(handle, spec.shape, nonce, log, hidden, time.monotonic()))

    def poll(self, handles: Sequence[Handle]) -> dict[Handle, Status]:
        """State of each: WAITING for its placement group, STARTING on its node, UP while it runs, else GONE."""
        live = [one for one in self._roster.of(handles) if one.final is None]
        facts = self._connection().ask("poll") if live else {}
        waits = any(facts[one.handle.id]["state"] == "waiting" for one in live)
        nodes = self._nodes() if waits else []
        return {handle: self._status(handle, facts.get(handle.id), nodes) for handle in handles}

    def stop(self, handles: Sequence[Handle], grace_s: float = GRACE_S) -> None:
        """End instances: SIGTERM to all that they started, SIGKILL after ``grace_s`` (10 s at most)."""
        ending = [one for one in self._roster.of(handles) if one.final is None]
        before: dict[str, Any] = {}
        if ending and self._driver is not None and self._driver.lives:
            grace_s, ids = min(grace_s, GRACE_S), [one.handle.id for one in ending]
            before = self._driver.ask("stop", limit_s=grace_s + STOP_LIMIT_S, ids=ids, grace_s=grace_s)
        for one in ending:
            one.stopped(before.get(one.handle.id, {}))

    def log_tail(self, handle: Handle, lines: int = 50) -> str:
        """The end of an instance's log; the values of keys and tokens in ``spec.env`` are blotted out."""
        one = self._roster.known(handle)
        return logs.tail(one.log, lines, one.secrets)

    def log_path(self, handle: Handle) -> str:
        """Where that log is, on this machine; the other nodes of an instance add ``.1``, ``.2``."""
        return self._roster.known(handle).log

    def close(self) -> None:
        """Stop every instance and leave the cluster.  A second call does nothing, nor does one in a fork."""
        if not self._roster.begin_to_close() or self._driver is None:
            return
        try:
            if self._connected and self._driver.lives:
                self.stop([one.handle for one in self._roster.all()])
        finally:
            self._leave(self._driver)

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
            self._leave(driver)
            self._driver = None
            if self._runtime_env is not None and "runtime_env" in error.args[0]:
                raise ConfigError(
                    f"--ray-runtime-env: {error.args[0]}",
                    "See what it may hold: https://docs.ray.io/en/latest/ray-core/handling-dependencies.html",
                ) from error
            raise SchedulerError(
                f"Ray at {self._address} did not take this process in: {error.args[0]}",
                "pytest must run on a node of the cluster, with the cluster's versions of Ray and Python: ray status",
            ) from error
        self._connected = True
        kinds = [kind for node in driver.ask("nodes") for kind in node["total"]]
        self._device = "NPU" if "NPU" in kinds and "GPU" not in kinds else "GPU"

    def _leave(self, driver: Connection) -> None:
        driver.end()
        if self._folder is not None:
            self._folder.cleanup()

    def _fresh_log(self, name: str, attempt: int) -> str:
        log = self._log_dir / f"{name.replace('/', '_')}.{attempt}.log"
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            log.write_bytes(b"")  # an earlier run's
        except OSError as error:
            raise SchedulerError(f"{name} cannot be started with its log in {log}: {error}.") from error
        return str(log)

    def _status(self, handle: Handle, facts: Mapping[str, Any] | None, nodes: Sequence[Mapping[str, Any]]) -> Status:
        one = self._roster.find(handle)
        return one if isinstance(one, Status) else one.status(facts, self._device, nodes)
