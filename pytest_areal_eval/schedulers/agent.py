"""What a node of a cluster runs for one instance: picks the ports, runs the server, tells the shared folder.

    python -I -S agent.py SPEC.json

Beside it lie ``supervise.py`` and the ``lease``, which the controlling process rewrites while it lives; the instance
ends when the lease stands still, on SIGTERM, and when its server ends on any of its nodes.  Files in ``events`` say
where the server listens and how it ended.  Stdlib only, Linux 5.3 or newer; runs as a bare file on any node.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

PORT_TRIES = 3
PORTS = range(10_000, 32_768)
"""Below the ports that Linux hands out by itself."""
MASTER_LIMIT_S = 60.0
SAME_SIGNAL_S = 0.2
ADDRESS_IN_USE = b"address already in use"
NOT_THE_SERVERS = (
    "SLURM_",
    "SLURMD_",
    "SRUN_",
    "SBATCH_",
    "SUBMITIT_",
    "PMI_",
    "PMIX_",
    "PYTEST_",
    "COVERAGE_",
    "COV_",
)
"""Engines and MPI take a job's variables for their own launcher's."""


def main(path: str) -> int:
    """Run the instance's part on this node; the exit status is not 0 unless it was asked to end."""
    with open(path) as file:
        spec = json.load(file)
    here = Node(spec, os.path.dirname(os.path.abspath(__file__)))
    try:
        if spec["own_job"] and int(os.environ.get("SLURM_RESTART_COUNT", "0")):
            raise Refusal("the job was requeued; its place is long taken by another one")
        end = here.serve()
    except (Refusal, OSError, subprocess.SubprocessError) as error:
        end = {"why": "failed", "code": 1, "error": str(error)}
    here.tell("end", **end)
    return 0 if end["why"] == "asked" else max(1, end["code"])


class Refusal(Exception):
    """The server cannot be run here."""


class Node:
    """One node of an instance.

    Args:
        spec: what :meth:`~pytest_areal_eval.schedulers.rendezvous.Rendezvous.invite` writes.
        folder: the run's folder.
    """

    def __init__(self, spec: dict[str, Any], folder: str) -> None:
        self.spec, self.folder = spec, folder
        self.tries = 0
        self.rank = int(os.environ.get("SLURM_NODEID", "0"))
        self.name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.log = os.path.join(folder, "logs", f"{spec['key']}{f'.{self.rank}' if self.rank else ''}.log")
        self.heard = hear(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
        self.gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "") if spec["gpus"] else ""

    def serve(self) -> dict[str, Any]:
        """Run the server until it ends or must end; on other ports where somebody has taken one meanwhile."""
        host = own_address(self.name, self.spec["controller"])
        for _ in range(PORT_TRIES):
            started, kills = time.monotonic(), oom_kills()
            process = self.start(host)
            why = self.watch(process)
            if why != "exited":
                self.end(process)
            code = process.wait(self.spec["grace_s"] + 10)
            seconds = time.monotonic() - started
            if why != "exited" or code <= 0 or self.spec["nodes"] > 1 or not self.lost_its_port():
                break
        return {"why": why, "code": code, "seconds": seconds, "oom": oom_kills() > kills}

    def start(self, host: str) -> subprocess.Popen[bytes]:
        """Pick the ports, tell the others, start the server under its supervisor."""
        self.tries += 1
        port, master_port = free_ports(host, 2)
        values = {"host": host, "port": port, "nonce": self.spec["nonce"]}
        values |= {"rank": self.rank, "nnodes": self.spec["nodes"], **self.master(host, master_port)}
        environment = {k: v for k, v in os.environ.items() if not k.startswith(NOT_THE_SERVERS)}
        environment |= {k: fill(v, values) for k, v in self.spec["env"].items()}
        environment["CUDA_VISIBLE_DEVICES"] = self.gpus
        if self.spec["nodes"] > 1:
            environment |= {k.upper(): str(values[k]) for k in ("master_addr", "master_port", "nnodes")}
            environment["NODE_RANK"] = str(self.rank)
        supervisor = [sys.executable, "-I", "-S", os.path.join(self.folder, "supervise.py"), str(os.getpid())]
        words = self.spec["argv"] + (self.spec["followers"] if self.rank else [])
        with open(self.log, "ab") as output:
            process = subprocess.Popen(
                [*supervisor, str(self.spec["grace_s"]), "--", *(fill(word, values) for word in words)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self.tell("up", host=host, port=port, step=os.environ.get("SLURM_STEP_ID", ""))
        return process

    def master(self, host: str, port: int) -> dict[str, Any]:
        """Where the ranks of this instance meet: rank 0 says it, the others wait for it."""
        mine = {"master_addr": host, "master_port": port}
        if self.rank == 0:
            if self.spec["nodes"] > 1:
                self.tell("master", **mine)
            return mine
        wanted, deadline = f"{self.spec['key']}.0.master1.json", time.monotonic() + MASTER_LIMIT_S
        events = os.path.join(self.folder, "events")
        while wanted not in os.listdir(events):  # listing asks a network file system anew, stat may not
            if time.monotonic() > deadline:
                raise Refusal(f"rank {self.rank}: rank 0 has not said where it listens within {MASTER_LIMIT_S:g} s")
            if select.select([self.heard], [], [], 0.2)[0]:
                raise Refusal(f"rank {self.rank} was asked to end before rank 0 had said where it listens")
        with open(os.path.join(events, wanted)) as file:
            told = json.load(file)
        return {name: told[name] for name in mine}

    def watch(self, process: subprocess.Popen[bytes]) -> str:
        """Wait until the server has ended ("exited"), a signal asks ("asked") or the lease stands still ("lease")."""
        watched = [os.pidfd_open(process.pid), self.heard]
        lease, since = self.lease(), time.monotonic()
        try:
            while True:
                ready, _, _ = select.select(watched, [], [], self.spec["lease_s"] / 10)
                if self.heard in ready:
                    os.read(self.heard, 256)
                    return "asked"
                if ready:  # scancel signals the server too, and which of us it reaches first is chance
                    return "asked" if select.select([self.heard], [], [], SAME_SIGNAL_S)[0] else "exited"
                now = self.lease()
                if now not in ("", lease):
                    lease, since = now, time.monotonic()
                elif time.monotonic() - since > self.spec["lease_s"]:
                    return "lease"
        finally:
            os.close(watched[0])

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Have the supervisor end all; SIGUSR1, which may reach us alone, calls off its grace."""
        process.terminate()
        deadline = time.monotonic() + self.spec["grace_s"]
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([self.heard], [], [], 0.05)[0] and signal.SIGUSR1 in os.read(self.heard, 256):
                process.send_signal(signal.SIGUSR1)

    def lease(self) -> str:
        """The lease's present text; empty where it cannot be read, which is as good as standing still."""
        try:
            with open(os.path.join(self.folder, "lease")) as file:
                text = file.read()
        except OSError:
            return ""
        return text

    def lost_its_port(self) -> bool:
        """Whether the server says that somebody had taken its port."""
        with open(self.log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            return ADDRESS_IN_USE in file.read().lower()

    def tell(self, kind: str, **facts: object) -> None:
        """Write a new file into ``events``: whole or not at all, and never changed, whoever reads it from wherever."""
        facts = {
            "kind": kind,
            "try": self.tries,
            "at": time.time(),
            "key": self.spec["key"],
            "rank": self.rank,
            "node": self.name,
            "gpus": self.gpus,
            **facts,
        }
        path = os.path.join(self.folder, "events", f"{self.spec['key']}.{self.rank}.{kind}{self.tries}.json")
        with open(path + ".new", "w") as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)


def fill(text: str, values: dict[str, Any]) -> str:
    """Replace ``{host}``, ``{port}`` and the like; other braces (JSON in an argument) stay."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def own_address(name: str, controller: str) -> str:
    """This node's address as others reach it.

    What its name means, unless that is 127.0.0.1 or Debian's 127.0.1.1; then the address from which packets to the
    controlling process's machine leave (none is sent).
    """
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(name)
        if found not in ("127.0.0.1", "127.0.1.1"):
            return found
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(controller), 9))
            found = str(probe.getsockname()[0])
    except OSError as error:
        raise Refusal(f"{name} finds no way to {controller}, where the run is controlled: {error}") from error
    if found.startswith("127.") and socket.gethostname() != controller:
        raise Refusal(f"{name} knows itself and {controller} only as {found}; correct its /etc/hosts")
    return found


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on; all are held until the last one is found, so that they differ."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        for port in random.SystemRandom().sample(PORTS, 200):
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                found.append(port)
            if len(found) == count:
                return found
    raise Refusal(f"no free port on {host}: 200 draws from {PORTS[0]}-{PORTS[-1]} are all in use")


def hear(*numbers: signal.Signals) -> int:
    """A descriptor that becomes readable when one of the signals comes."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return read


def oom_kills() -> int:
    """How many processes this node's kernel has killed for lack of memory."""
    with contextlib.suppress(OSError), open("/proc/vmstat") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
