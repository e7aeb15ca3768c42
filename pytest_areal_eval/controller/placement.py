"""Where servers run: how a replica's GPUs are spread over nodes, and which nodes are not used again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from pytest_areal_eval.controller.settings import Needs
from pytest_areal_eval.engines.base import Launch
from pytest_areal_eval.errors import CannotFit
from pytest_areal_eval.schedulers.base import Capacity, NodeFree, Scheduler, Shape
from pytest_areal_eval.schedulers.gpus import counted

MOST_FAILURES = 2


class Placement:
    """What is asked of a scheduler for each server; its methods are called in threads.

    Args:
        scheduler: knows the nodes.
        needs: CPUs and memory beyond what an engine asks for.

    Attributes:
        excluded: nodes not to be used again.
    """

    def __init__(self, scheduler: Scheduler, needs: Needs) -> None:
        self._scheduler, self._needs = scheduler, needs
        self._failures: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.excluded: frozenset[str] = frozenset()

    def check(self, replicas: Sequence[Launch]) -> None:
        """Whether the nodes, if nobody else used them, could hold all replicas at once; before any is started.

        Raises:
            CannotFit: they could not.  One replica alone is left to the scheduler, which knows more of it.
        """
        if len(replicas) < 2:
            return
        capacity = self._scheduler.capacity()
        if capacity.elastic or not capacity.nodes:
            return
        shape, count = self.shape("a replica", replicas[0]), len(replicas)
        nodes = [node for node in capacity.nodes if node.gpus_total or not shape.gpus_per_node]
        rooms = [_rooms(node, shape) for node in nodes]
        room = sum(min(each.values(), default=count * shape.nodes) for each in rooms) // shape.nodes
        if room < count:
            whats = list(rooms[0]) if rooms else ["GPU"]
            short = [what for what in whats if sum(each.get(what, 0) for each in rooms) // shape.nodes < count]
            whats = short or whats  # each alone may be enough
            less = " or reserve less for each (--server-cpus=N, --server-mem=GB)" if self._needs.reserves else ""
            raise CannotFit(
                f"{count} replicas of {_wanted(shape, whats)} do not fit: the {self._scheduler.name} scheduler has "
                f"{_there(nodes, whats)} on {counted(len(nodes), 'node')}, room for {room}.",
                f"Ask for fewer replicas or smaller ones (--backend=ENGINE:d{room or 'N'}){less}.",
            )

    def is_room(self, name: str, launch: Launch, without: Collection[str]) -> bool:
        """Whether what a replica needs is free now on other nodes than ``without``, as far as the scheduler knows."""
        shape, unwanted = self.shape(name, launch), self.excluded.union(without)
        free = [node for node in self._scheduler.capacity().nodes if node.usable and node.name not in unwanted]
        fitting = [node for node in free if node.gpus_free >= shape.gpus_per_node]
        return sum((node.cpus_free or 0) >= shape.cpus_per_node for node in fitting) >= shape.nodes

    def shape(self, name: str, launch: Launch) -> Shape:
        """What one replica needs: one node, or the fewest that hold its GPUs in equal parts.

        Raises:
            CannotFit: it needs several nodes, and its engine cannot use them or there are not enough.
        """
        nodes = self._nodes_for(name, launch) if launch.gpus > 1 else 1
        gpus, needs = launch.gpus // nodes, self._needs
        each = max(gpus, 1)
        return Shape(
            nodes=nodes,
            gpus_per_node=gpus,
            cpus_per_node=launch.cpus if needs.cpus_per_gpu is None else max(launch.cpus, needs.cpus_per_gpu * each),
            mem_gb_per_node=None if needs.mem_gb_per_gpu is None else needs.mem_gb_per_gpu * each,
        )

    def blame(self, node: str) -> str:
        """Count a server that was lost on a node; returns what to say where that was one too many.

        At most half of the nodes are given up: where servers fail on more, it is not the nodes.
        """
        with self._lock:
            self._failures[node] += 1
            if self._failures[node] < MOST_FAILURES or node in self.excluded:
                return ""
            usable = {one.name for one in self._scheduler.capacity().nodes if one.usable}
            if 2 * len((self.excluded | {node}) & usable) > len(usable):
                return ""
            self.excluded |= {node}
            return f"{node} is not used again: {self._failures[node]} servers were lost there"

    def _nodes_for(self, name: str, launch: Launch) -> int:
        capacity = self._scheduler.capacity()
        gpus = [node.gpus_total for node in capacity.nodes if node.usable]
        largest = max(gpus, default=0)
        if launch.gpus <= largest or largest == 0 or (len(gpus) == 1 and not capacity.elastic):
            return 1  # the scheduler itself says what does not fit
        nodes = next(n for n in range(2, launch.gpus + 1) if launch.gpus % n == 0 and launch.gpus // n <= largest)
        asks = f"{name} asks for {launch.gpus} GPUs; the largest node has {largest}"
        if launch.gang is None:
            raise CannotFit(f"{asks}, and its engine runs on one node.", "Ask for fewer GPUs in a replica.")
        if not capacity.elastic and _with_at_least(capacity, launch.gpus // nodes) < nodes:
            raise CannotFit(
                f"{asks}, and there are no {nodes} nodes with {launch.gpus // nodes}.",
                "Ask for fewer GPUs in a replica.",
            )
        return nodes


def _rooms(node: NodeFree, shape: Shape) -> dict[str, int]:
    """How many parts of replicas a node could hold, by what they need and the scheduler counts."""
    rooms: dict[str, int] = {}
    if shape.gpus_per_node:
        rooms["GPU"] = node.gpus_total // shape.gpus_per_node
    if node.cpus_total is not None:
        rooms["CPU"] = node.cpus_total * node.cpu_share // shape.cpus_per_node
    if node.mem_gb_total is not None and shape.mem_gb_per_node:
        rooms["GB"] = int(node.mem_gb_total // shape.mem_gb_per_node)
    return rooms


def _wanted(shape: Shape, whats: Iterable[str]) -> str:
    said = {
        "GPU": counted(shape.gpus_per_node * shape.nodes),
        "CPU": counted(shape.cpus_per_node * shape.nodes, "CPU"),
        "GB": f"{(shape.mem_gb_per_node or 0) * shape.nodes:g} GB",
    }
    return " and ".join(said[what] for what in whats)


def _there(nodes: Sequence[NodeFree], whats: Iterable[str]) -> str:
    share = max((node.cpu_share for node in nodes), default=1)
    cpus = counted(sum(node.cpus_total or 0 for node in nodes), "CPU")
    said = {
        "GPU": counted(sum(node.gpus_total for node in nodes)),
        "CPU": f"{cpus} for {share} servers each" if share > 1 else cpus,
        "GB": f"{sum(node.mem_gb_total or 0 for node in nodes):,.0f} GB",
    }
    return " and ".join(said[what] for what in whats)


def _with_at_least(capacity: Capacity, gpus: int) -> int:
    return sum(node.usable and node.gpus_total >= gpus for node in capacity.nodes)
