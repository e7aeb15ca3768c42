"""The process that is connected to the Ray cluster, as the servant of ``scheduler.py``.

    python -m pytest_areal_eval.schedulers.ray.driver

Ray ends its driver's process a minute after the cluster's head is gone, and its calls hang until then; pytest must
outlive both.  Requests are JSON, one a packet on the socket that is the standard input; answers are lines of JSON on
the standard output.  Actors are not detached: when this process is gone, so are they and their servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray._private.state import available_resources_per_node  # vLLM relies on it too; nothing public tells as much
from ray.exceptions import ActorUnavailableError, RayError
from ray.runtime_env import RuntimeEnv
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pytest_areal_eval.schedulers import agent, supervise
from pytest_areal_eval.schedulers.ray import node

TABLE_S = 0.2
PACKET_BYTES = 1 << 20
KILL_LIMIT_S = 3.0
LAST_WORDS_S = 2.0


async def main() -> None:
    """Answer requests until the other side closes the socket."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    requests = socket.socket(fileno=os.dup(0))
    requests.setblocking(False)
    cluster, tasks = Cluster(), set()

    async def answer(request: dict[str, Any]) -> None:
        number, do = request.pop("number"), request.pop("do")
        try:
            answers.write(json.dumps({"number": number, "value": await getattr(cluster, do)(**request)}) + "\n")
        except Exception as error:  # whatever Ray raises is the other side's to report
            answers.write(json.dumps({"number": number, "error": first_lines(error)}) + "\n")

    while packet := await asyncio.get_running_loop().sock_recv(requests, PACKET_BYTES):
        tasks.add(task := asyncio.create_task(answer(json.loads(packet))))
        task.add_done_callback(tasks.discard)
    ray.shutdown()  # a cluster that was started here ends
    os._exit(0)  # not through what is left of the tasks, whose last calls would start Ray anew


class Cluster:
    """What can be asked of the Ray cluster; each coroutine is a request."""

    def __init__(self) -> None:
        self._instances: dict[str, Instance] = {}
        self._table: Mapping[str, Any] = {}
        self._read_at = -TABLE_S

    async def connect(self, address: str, node_ip: str | None, folder: str, runtime_env: dict[str, Any] | None) -> None:
        """Join the cluster at ``address``, or start one here for ``local``.

        Args:
            address: ``host:port`` of the head.
            node_ip: this machine's own name in the cluster; None lets Ray find it.
            folder: for the files of a cluster that is started here; a short path, since sockets lie in it.
            runtime_env: passed on to Ray.
        """
        unknown = sorted(set(runtime_env or ()) - RuntimeEnv.known_fields)
        if unknown and "RAY_RUNTIME_ENV_PLUGINS" not in os.environ:  # Ray itself would ignore it
            raise ValueError(f"a runtime_env has no field {', '.join(unknown)}")
        options: dict[str, Any] = {"_node_ip_address": node_ip} if node_ip else {}
        if address == "local":
            options = {"include_dashboard": False, "object_store_memory": 100_000_000, "_temp_dir": folder}
        ray.init(address=address, runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR", **options)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's own handler tidies up, and may hang without its head
        for module in (agent, node, supervise):
            cloudpickle.register_pickle_by_value(module)

    async def nodes(self) -> list[dict[str, Any]]:
        """The nodes with their resources, in all and free."""
        free = available_resources_per_node()
        return [
            {
                "id": one["NodeID"],
                "name": one["NodeName"],
                "alive": one["Alive"],
                "why_not": one["DeathReasonMessage"],
                "total": one["Resources"],
                "free": free.get(one["NodeID"], {}),
            }
            for one in sorted(ray.nodes(), key=lambda node: str(node["NodeName"]))
        ]

    async def start(self, order: dict[str, Any]) -> str:
        """Ask for a placement group and begin to care for its instance; returns the group's id.

        Args:
            order: ``name``, ``attempt``, ``log``, ``nonce``, ``argv``, ``followers``, ``env``, ``python``, ``lease_s``;
                ``bundle``, the resources of one node; ``nodes``, how many; ``device``, the kind of accelerator;
                ``exclude``, ids of nodes.
        """
        instance = Instance(order, self)
        self._instances[instance.id] = instance
        return instance.id

    async def poll(self) -> dict[str, dict[str, Any]]:
        """What is known of each instance."""
        return {key: instance.facts for key, instance in self._instances.items()}

    async def stop(self, ids: list[str], grace_s: float) -> dict[str, dict[str, Any]]:
        """End instances; returns what was known of each before."""
        ending = {key: self._instances[key] for key in ids if key in self._instances}
        before = {key: dict(instance.facts) for key, instance in ending.items()}
        await asyncio.gather(*(instance.stop(grace_s) for instance in ending.values()))
        return before

    def placement(self, key: str) -> str:
        """State of a placement group, from a table that is read a few times a second for all of them."""
        if time.monotonic() - self._read_at > TABLE_S:
            self._table, self._read_at = placement_group_table(), time.monotonic()
        return str(self._table.get(key, {}).get("state", "PENDING"))


class Instance:
    """One server: its placement group, an actor on each of its nodes, and what is known of it.

    Attributes:
        facts: ``state`` (waiting, starting, up, gone), ``placement``; ``places`` once known; ``end`` when gone.
    """

    def __init__(self, order: dict[str, Any], cluster: Cluster) -> None:
        self._order, self._cluster = order, cluster
        unwanted = {"ray.io/node-id": f"!in({','.join(order['exclude'])})"} if order["exclude"] else None
        self._group = placement_group(
            [order["bundle"]] * order["nodes"],
            strategy="STRICT_PACK" if order["nodes"] == 1 else "STRICT_SPREAD",
            name=f"{order['name']}.{order['attempt']}",
            bundle_label_selector=[unwanted] * order["nodes"] if unwanted else None,
        )
        self.id: str = self._group.id.hex()
        self.facts: dict[str, Any] = {"state": "waiting", "placement": "PENDING"}
        self._actors: list[Any] = []
        self._launching = False
        self._life = asyncio.create_task(self._live())

    async def stop(self, grace_s: float) -> None:
        """End the processes, then give the group back.  A node that does not answer ends them by itself."""
        if self._launching:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(grace_s + KILL_LIMIT_S):
                    await asyncio.gather(*(actor.stop.remote(grace_s) for actor in self._actors))
            await asyncio.wait([self._life], timeout=LAST_WORDS_S)
        self._life.cancel()
        await asyncio.wait([self._life])

    async def _live(self) -> None:
        try:
            await self._placed()
            await self._launched()
            ends = [asyncio.create_task(self._follow(rank)) for rank in range(self._order["nodes"])]
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self.facts["end"] = next(iter(done)).result()
        except (RayError, OSError, LookupError) as error:
            self.facts["end"] = {"kind": self._kind(error), "text": first_lines(error)}
        finally:
            self.facts["state"] = "gone"
            for actor in self._actors:
                ray.kill(actor)
            remove_placement_group(self._group)

    async def _placed(self) -> None:
        while (state := self._cluster.placement(self.id)) != "CREATED":
            if state == "REMOVED":
                raise LookupError(f"placement group {self.id} was removed")
            self.facts["placement"] = state
            await asyncio.sleep(TABLE_S)

    async def _launched(self) -> None:
        order, bundle = self._order, dict(self._order["bundle"])
        self.facts["state"] = "starting"
        remote = ray.remote(node.Node)
        for rank in range(order["nodes"]):
            where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
            own = {k: v for k, v in bundle.items() if k not in ("CPU", "GPU", "memory")}
            options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "memory": bundle.get("memory")}
            actor = remote.options(**options, resources=own, scheduling_strategy=where, max_concurrency=4)
            self._actors.append(actor.remote())
        places = await asyncio.gather(*(actor.place.remote(order["device"]) for actor in self._actors))
        orders = [self._part(rank, places) for rank in range(order["nodes"])]
        self._launching = True  # from here on there are processes to be ended
        await asyncio.gather(*(a.launch.remote(part) for a, part in zip(self._actors, orders, strict=True)))
        names = {one["NodeID"]: one["NodeName"] for one in ray.nodes()}
        self.facts |= {"state": "up", "places": [place | {"name": names[place["node"]]} for place in places]}

    def _part(self, rank: int, places: list[dict[str, Any]]) -> dict[str, Any]:
        order, here, first = self._order, places[rank], places[0]
        values = {"host": here["host"], "port": here["port"], "nonce": order["nonce"], "rank": rank}
        values |= {"master_addr": first["host"], "master_port": first["master_port"], "nnodes": order["nodes"]}
        env = dict(order["env"])
        if order["nodes"] > 1:
            env |= {name.upper(): str(values[name]) for name in ("master_addr", "master_port", "nnodes")}
            env["NODE_RANK"] = str(rank)
        return {
            "argv": order["argv"] + (order["followers"] if rank else []),
            "env": env,
            "values": values,
            "devices": {"GPU": [], order["device"]: here["devices"]},
            "python": order["python"],
            "lease_s": order["lease_s"],
            "supervise": Path(supervise.__file__).read_text(),
        }

    async def _follow(self, rank: int) -> dict[str, Any]:
        """Copy a rank's log here until its server has ended; returns how."""
        path, offset = self._order["log"] + (f".{rank}" if rank else ""), 0
        with open(path, "ab", buffering=0) as log:  # noqa: ASYNC230 - a local file
            while True:
                try:
                    text, end = await self._actors[rank].watch.remote(offset)
                except ActorUnavailableError:
                    await asyncio.sleep(TABLE_S)
                    continue
                log.write(text)
                offset += len(text)
                if end is not None and not text:
                    return {**end, "rank": rank}

    def _kind(self, error: Exception) -> str:
        """Why Ray has ended an actor, as far as Ray tells: by a word of its message."""
        text = str(error)
        if getattr(error, "preempted", False):
            return "preempted"
        nodes = {place["node"] for place in self.facts.get("places", [])}
        if "node has died" in text or any(n["NodeID"] in nodes and not n["Alive"] for n in ray.nodes()):
            return "node"
        if "`ray.kill`" in text or "removed" in text:
            return "cancelled"
        if "memory" in text and "OutOfMemory" in f"{type(error).__name__} {text}":
            return "oom"
        return "killed" if "died" in text else "failed"


def first_lines(error: BaseException, limit: int = 400) -> str:
    """An error's text on one line, without the traceback of another machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines) or type(error).__name__
    return text if len(text) <= limit else f"{text[:limit]}…"


if __name__ == "__main__":
    asyncio.run(main())
