"""The folder that the controlling process shares with a cluster's nodes: what to run goes out, where it runs comes in.

Invariant: no path over the network is needed from a node to the controlling process, and nothing is guessed: an
address is what the agent on the node wrote.  The instances end when the lease in this folder stands still.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_areal_eval.errors import ConfigError, SchedulerError
from pytest_areal_eval.schedulers import agent, processes, supervise
from pytest_areal_eval.schedulers.base import Address, InstanceSpec

BEATS_PER_LEASE = 10


@dataclass(frozen=True)
class Event:
    """What an agent wrote: ``up`` (the server listens or soon will), ``master`` or ``end``.

    Attributes:
        kind: which of them.
        rank: the node's number within the instance.
        node: its name.
        facts: the rest, as the agent wrote it.
    """

    kind: str
    rank: int
    node: str
    facts: Mapping[str, Any]


class Rendezvous:
    """One run's folder.

    Args:
        folder: on a file system that the nodes see; made on first use.
        lease_s: how long instances live on once this process is gone.
        grace_s: seconds between SIGTERM and SIGKILL when a server is ended on its node.
    """

    def __init__(self, folder: Path, lease_s: float, grace_s: float) -> None:
        self.folder = folder.absolute()
        self.jobs = self.folder / "jobs"
        self._lease_s, self._grace_s = lease_s, grace_s
        self._read: dict[str, Event] = {}
        self._ended = threading.Event()
        self._beating: threading.Thread | None = None
        self._trouble: OSError | None = None

    def open(self) -> None:
        """Make the folder, put the agent there and begin the lease; does nothing the second time.

        Raises:
            ConfigError: it cannot be written.
        """
        if self._beating is not None:
            return
        try:
            for part in (self.jobs, self.folder / "logs", self.folder / "events", self.folder / "specs"):
                part.mkdir(parents=True, exist_ok=True, mode=0o700)
            for program in (agent, supervise):
                assert program.__file__ is not None
                shutil.copy(program.__file__, self.folder)
            self._beat(0)
        except OSError as error:
            raise ConfigError(
                f"The shared folder {self.folder} cannot be written: {error}.",
                "Name one that this machine and the nodes can both write to: --shared-dir=DIR",
            ) from error
        self._beating = threading.Thread(target=self._keep_beating, name="areal-eval-lease", daemon=True)
        self._beating.start()

    def invite(self, key: str, spec: InstanceSpec, nonce: str, own_job: bool) -> list[str]:
        """Write down what to run; returns the agent's arguments for Python on the node.

        Args:
            key: the instance's attempt, unique in this run.
            spec: the instance.
            nonce: fills ``{nonce}``.
            own_job: the instance is a job of its own, not a step of another one.
        """
        told = {
            "key": key,
            "argv": spec.argv,
            "followers": spec.followers,
            "env": {**spec.env, processes.MARK: nonce},
            "nodes": spec.shape.nodes,
            "gpus": spec.shape.gpus_per_node,
            "nonce": nonce,
            "own_job": own_job,
            "controller": socket.gethostname(),
            "lease_s": self._lease_s,
            "grace_s": self._grace_s,
        }
        path = self.folder / "specs" / f"{key}.json"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # it holds the token
            json.dump(told, file)
        return ["-I", "-S", str(self.folder / "agent.py"), str(path)]

    def events(self) -> dict[str, list[Event]]:
        """All that the agents have written, by key.

        Raises:
            SchedulerError: the folder cannot be read, or the lease not written: the instances will end.
        """
        if self._trouble is not None:
            raise SchedulerError(
                f"The lease in {self.folder} cannot be rewritten ({self._trouble}); the servers end within "
                f"{self._lease_s:g} s of the last time that it could."
            )
        found: dict[str, list[Event]] = {}
        try:
            with os.scandir(self.folder / "events") as entries:  # listing asks a network file system anew
                written = [entry.name for entry in entries if entry.name.endswith(".json")]
            for name in written:
                if name not in self._read:  # none is ever changed
                    self._read[name] = _parse((self.folder / "events" / name).read_text())
                found.setdefault(name.rsplit(".", 3)[0], []).append(self._read[name])
        except OSError as error:
            raise SchedulerError(f"The shared folder {self.folder} cannot be read: {error}.") from error
        return found

    def address(self, key: str, nonce: str, events: Sequence[Event]) -> Address | None:
        """Where an instance listens, once its first node has said so."""
        last_tries = sorted((event for event in events if event.kind == "up"), key=lambda event: event.facts["try"])
        by_rank = {event.rank: event for event in last_tries}
        if 0 not in by_rank:
            return None
        ups = [by_rank[rank] for rank in sorted(by_rank)]
        return Address(
            host=ups[0].facts["host"],
            port=ups[0].facts["port"],
            nonce=nonce,
            log_path=self.log(key),
            nodes=tuple(up.node for up in ups),
            gpus=tuple(tuple(filter(None, up.facts["gpus"].split(","))) for up in ups),
        )

    def log(self, key: str, rank: int = 0) -> str:
        """The server's log on one of its nodes."""
        return str(self.folder / "logs" / f"{key}{f'.{rank}' if rank else ''}.log")

    def close(self) -> None:
        """End the lease, and remove all but the logs and what was submitted."""
        self._ended.set()
        if self._beating is None:
            return
        self._beating.join(5)
        for part in ("events", "specs"):
            shutil.rmtree(self.folder / part, ignore_errors=True)  # an agent may be writing its last words
        for pickle in self.jobs.glob("*.pkl"):
            pickle.unlink()
        for name in ("agent.py", "supervise.py", "lease"):
            (self.folder / name).unlink(missing_ok=True)

    def _keep_beating(self) -> None:
        beat = 0
        while not self._ended.wait(self._lease_s / BEATS_PER_LEASE):
            beat += 1
            try:
                self._beat(beat)
                self._trouble = None
            except OSError as error:
                self._trouble = error

    def _beat(self, number: int) -> None:
        """Agents compare texts, not times: clocks differ between machines."""
        new = self.folder / "lease.new"
        new.write_text(f"{os.getpid()} {number}\n")
        new.replace(self.folder / "lease")


def _parse(text: str) -> Event:
    facts = json.loads(text)
    return Event(facts["kind"], facts["rank"], facts["node"], facts)
