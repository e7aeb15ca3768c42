"""Where servers run: how a replica's GPUs are spread over nodes, and which nodes are not used again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from pytest_areal_eval.controller.settings import Needs
from pytest_areal_eval.engines.base import Launch
from pytest_areal_eval.errors import CannotFit
from pytest_areal_eval.schedulers.base import Capacity, Scheduler, Shape
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
        """Whether the nodes, if nobody else used them, have the GPUs of all replicas; before any is started.

        Raises:
            CannotFit: they have not.  One replica alone is left to the scheduler, which knows more than GPUs.
        """
        gpus = max((launch.gpus for launch in replicas), default=0)
        if gpus == 0 or len(replicas) == 1:
            return
        capacity, shape = self._scheduler.capacity(), self.shape("a replica", replicas[0])
        totals = [node.gpus_total for node in capacity.nodes if node.gpus_total]
        room = sum(total // shape.gpus_per_node for total in totals) // shape.nodes
        if room < len(replicas) and not capacity.elastic:
            where = f"{len(totals)} node{'' if len(totals) == 1 else 's'}"
            raise CannotFit(
                f"{len(replicas)} replicas of {counted(gpus)} do not fit: the {self._scheduler.name} scheduler has "
                f"{counted(sum(totals))} on {where}, room for {room}.",
                "Ask for fewer replicas or smaller ones (--backend=ENGINE:dN).",
            )

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


def _with_at_least(capacity: Capacity, gpus: int) -> int:
    return sum(node.usable and node.gpus_total >= gpus for node in capacity.nodes)
