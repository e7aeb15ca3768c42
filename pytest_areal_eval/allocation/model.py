"""AReaL's allocation objects: which backend runs a model, how it is split, and what shares whose devices.

Names, fields and properties are AReaL's.  Three things differ: ``str()`` parses back to an equal object, every mistake
is an :class:`AllocationValidationError` (a ``ValueError``), and nothing that says a thing twice is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_areal_eval.allocation.strategy import ParallelStrategy, hybrid_of, strategy_of
from pytest_areal_eval.allocation.syntax import INFERENCE_BACKENDS, AllocationValidationError, Part, excerpt, read


@dataclass(frozen=True)
class SchedulingStrategy:
    """On devices of its own (``separation``), or on those of ``target`` (``colocation``)."""

    type: str = "separation"
    target: str | None = None


@dataclass(frozen=True)
class ModelAllocation:
    """One model: its backend, its name, its split."""

    backend: str
    name: str | None = None
    parallel: ParallelStrategy = field(default_factory=ParallelStrategy)
    scheduling_strategy: SchedulingStrategy = field(default_factory=SchedulingStrategy)

    @classmethod
    def from_str(
        cls, spec: str, name: str | None = None, scheduling_strategy: SchedulingStrategy | None = None
    ) -> ModelAllocation:
        """Read one allocation, such as ``sglang:d12p1t1``.

        Args:
            spec: the text.
            name: replaces the name in the text.
            scheduling_strategy: replaces the default, devices of its own.

        Raises:
            AllocationValidationError: it cannot be read, or is not one allocation.
        """
        components = read(spec)
        if len(components) > 1:
            raise AllocationValidationError(
                f"{excerpt(spec)}: Multi-component strings containing '+' are not allowed here",
                "Give one allocation, and each engine's in a field of its own (rollout.backend, actor.backend).",
            )
        found = _group(spec, components[0])
        if len(found) > 1:
            raise AllocationValidationError(
                f"{excerpt(spec)}: Expected a single allocation from spec '{excerpt(spec)}', "
                f"got {len(found)} allocations."
            )
        changes: dict[str, Any] = {"name": name, "scheduling_strategy": scheduling_strategy}
        return dataclasses.replace(found[0], **{key: value for key, value in changes.items() if value is not None})

    @property
    def world_size(self) -> int:
        """Devices that it adds: none where it shares another's."""
        return 0 if self.scheduling_strategy.type == "colocation" else self.parallel.world_size

    @property
    def is_inference(self) -> bool:
        """Whether the backend generates."""
        return self.backend in INFERENCE_BACKENDS

    def __str__(self) -> str:
        p = self.parallel
        head = self.backend + (f"[{self.name}]" if self.name else "")
        if p.etp_size == 1:
            return f"{head}:{_dims(d=p.dp_size, p=p.pp_size, t=p.tp_size, c=p.cp_size, e=p.ep_size)}"
        experts = p.world_size // (p.pp_size * p.etp_size * p.ep_size)
        attention = _dims(d=p.dp_size, p=p.pp_size, t=p.tp_size, c=p.cp_size)
        return f"{head}:(attn:{attention}|ffn:{_dims(d=experts, p=p.pp_size, t=p.etp_size, e=p.ep_size)})"


@dataclass(frozen=True)
class AllocationMode:
    """All allocations of an experiment, as in the ``allocation_mode`` of older AReaL configurations."""

    allocations: tuple[ModelAllocation, ...]

    @classmethod
    def from_str(cls, spec: str) -> AllocationMode:
        """Read an expression such as ``sglang[rollout]:d2+fsdp[actor]:d4|fsdp[critic]:d4``.

        Raises:
            AllocationValidationError: it cannot be read, or its names are missing or not distinct.
        """
        components = read(spec)
        found = [allocation for component in components for allocation in _group(spec, component)]
        names = [allocation.name for allocation in found if allocation.name]
        unnamed = len(found) - len(names)
        if len(components) >= 3 and unnamed:
            raise AllocationValidationError(
                f"{excerpt(spec)}: When using 3+ components, all must have names. Found {unnamed} unnamed components.",
                "Name each, such as sglang[rollout]:d4.",
            )
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise AllocationValidationError(f"{excerpt(spec)}: Duplicate component name: {twice}")
        return cls(tuple(found))

    def __getitem__(self, name: str) -> ModelAllocation:
        found = next((allocation for allocation in self.allocations if allocation.name == name), None)
        if found is None:
            raise KeyError(f"No allocation found with name: {name}")
        return found

    @property
    def gen(self) -> ModelAllocation:
        """The one that generates.  AttributeError where it is not one."""
        return self._only("gen", inference=True)

    @property
    def train(self) -> ModelAllocation:
        """The one that trains.  AttributeError where it is not one."""
        return self._only("train", inference=False)

    @property
    def gen_backend(self) -> str | None:
        """Backend of the first that generates."""
        return next((a.backend for a in self.allocations if a.is_inference), None)

    @property
    def train_backend(self) -> str | None:
        """Backend of the first that trains."""
        return next((a.backend for a in self.allocations if not a.is_inference), None)

    @property
    def gen_instance_size(self) -> int:
        """Devices of one replica."""
        return self.gen.parallel.tp_size * self.gen.parallel.pp_size

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return sum(allocation.world_size for allocation in self.allocations)

    def __str__(self) -> str:
        first, *rest = self.allocations
        return str(first) + "".join(("|" if a.scheduling_strategy.type == "colocation" else "+") + str(a) for a in rest)

    def _only(self, what: str, *, inference: bool) -> ModelAllocation:
        found = [a for a in self.allocations if a.is_inference == inference]
        if len(found) != 1:
            problem = f"Ambiguous '{what}' property: {len(found)} allocations" if found else f"no '{what}' allocation"
            raise AttributeError(f"{problem} in {self}; take one by its name")
        return found[0]


def _group(spec: str, parts: Sequence[Part]) -> list[ModelAllocation]:
    """One component; all but its first share the first one's devices."""
    found = [_allocation(spec, part) for part in parts]
    if len(found) == 1:
        return found
    if any(allocation.name is None for allocation in found):
        raise AllocationValidationError(
            f"{excerpt(spec)}: Components in colocation group must have names",
            "Name each, such as fsdp[actor]:d4|fsdp[critic]:d4.",
        )
    first, *rest = found
    for other in rest:
        if other.world_size != first.world_size:
            raise AllocationValidationError(
                f"{excerpt(spec)}: Colocated components must have matching world sizes. {first.name!r} has "
                f"{first.world_size}, {other.name!r} has {other.world_size}."
            )
    shared = SchedulingStrategy("colocation", first.name)
    return [first, *(dataclasses.replace(other, scheduling_strategy=shared) for other in rest)]


def _allocation(spec: str, part: Part) -> ModelAllocation:
    try:
        parallel = strategy_of(part.sizes) if part.experts is None else hybrid_of(part.sizes, part.experts)
    except AllocationValidationError as error:
        raise type(error)(f"{excerpt(spec)}: {error.args[0]}", error.hint) from None
    if part.backend is None:
        raise AllocationValidationError(
            f"{excerpt(spec)}: the backend must be explicitly specified", "Write sglang:d4 or fsdp:d4, not d4."
        )
    if part.backend == "fsdp" and (parallel.pp_size > 1 or parallel.ep_size > 1):
        raise AllocationValidationError(
            f"{excerpt(spec)}: FSDP backend only supports data/tensor/context parallelism. Got strategy: {parallel}"
        )
    return ModelAllocation(part.backend, part.name, parallel)


def _dims(**sizes: int) -> str:
    """``d4t2``: the sizes that are not 1, or ``d1``."""
    return "".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1) or "d1"
