"""Whether a Ray cluster can hold an instance, and why one waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_areal_eval.errors import CannotFit
from pytest_areal_eval.schedulers.base import InstanceSpec, Shape
from pytest_areal_eval.schedulers.gpus import counted
from pytest_areal_eval.schedulers.ray.address import LOCAL

SHOWN_NODES = 8


def bundle_of(shape: Shape, device: str) -> dict[str, float]:
    """What one node of an instance asks of Ray."""
    bundle: dict[str, float] = {"CPU": shape.cpus_per_node}
    if shape.gpus_per_node:
        bundle[device] = shape.gpus_per_node
    if shape.mem_gb_per_node:
        bundle["memory"] = int(shape.mem_gb_per_node * 1e9)
    return bundle


def check_fits(
    spec: InstanceSpec,
    bundle: Mapping[str, float],
    nodes: Sequence[Mapping[str, Any]],
    running: int,
    address: str,
) -> None:
    """Whether the nodes, if nobody else used them, could hold an instance beside ``running`` others like it.

    Raises:
        CannotFit: they could not.
    """
    cluster = f"the Ray cluster at {address}" if address != LOCAL else "the Ray started on this machine"
    if spec.shape.nodes > len(nodes):
        raise CannotFit(
            f"{spec.name} asks for {_nodes(spec.shape.nodes)}; {cluster} has {len(nodes)}.",
            "Ask for fewer, or add nodes: ray start --address=…",
        )
    for resource, wanted in bundle.items():
        largest = max(node["total"].get(resource, 0) for node in nodes)
        if wanted > largest:
            raise CannotFit(
                f"{spec.name} asks for {_amount(wanted, resource)} on one node; the largest node of {cluster} has "
                f"{_amount(largest, resource)}.",
                "Ask for fewer in each replica, or add larger nodes.",
            )
    room = [min(int(node["total"].get(name, 0) // wanted) for name, wanted in bundle.items()) for node in nodes]
    if sum(min(each, running + 1) for each in room) < (running + 1) * spec.shape.nodes:
        each = " and ".join(_amount(wanted, name) for name, wanted in bundle.items())
        each += f" on each of {spec.shape.nodes} nodes" if spec.shape.nodes > 1 else ""
        raise CannotFit(
            f"{spec.name} does not fit beside {running} others of this run: one takes {each}, and {cluster} has "
            f"{_totals(nodes, bundle)}.",
            "Ask for fewer replicas, or add nodes.",
        )


def waiting(shape: Shape, state: str, device: str, nodes: Sequence[Mapping[str, Any]]) -> str:
    """Why a placement group waits, for a person."""
    free = [
        f"{node['name']} {node['free'].get(device, 0):g} of {node['total'].get(device, 0):g} {device}s, "
        f"{node['free'].get('CPU', 0):g} of {node['total'].get('CPU', 0):g} CPUs"
        for node in nodes
        if node["alive"]
    ]
    shown = "; ".join(free[:SHOWN_NODES]) + (f"; {len(free) - SHOWN_NODES} more" if len(free) > SHOWN_NODES else "")
    wants = f"{counted(shape.gpus_per_node)} and {shape.cpus_per_node} CPU"
    return f"placement group {state}: wants {shape.nodes} x ({wants}); free: {shown or 'no node'}"


def _totals(nodes: Sequence[Mapping[str, Any]], bundle: Mapping[str, float]) -> str:
    totals = [_amount(sum(node["total"].get(name, 0) for node in nodes), name) for name in bundle]
    return f"{' and '.join(totals)} on {_nodes(len(nodes))}"


def _nodes(number: int) -> str:
    return f"{number} node{'' if number == 1 else 's'}"


def _amount(number: float, resource: str) -> str:
    if resource == "memory":
        return f"{round(number / 1e9, 1):,g} GB of memory"
    return f"{number:g} {resource}{'' if number == 1 else 's'}"
