"""AReaL's allocation objects: how a model is split, which backend runs it, and what shares whose devices.

Names, fields and properties are AReaL's.  Three things differ: ``str()`` parses back to an equal object, every mistake
is an :class:`AllocationValidationError` (a ``ValueError``), and nothing that says a thing twice is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_areal_eval.allocation.syntax import (
    INFERENCE_BACKENDS,
    AllocationValidationError,
    InvalidAllocationModeError,
    Part,
    excerpt,
    read,
)

_AXES = {"d": "data", "p": "pipeline", "t": "tensor", "c": "context", "e": "expert"}


@dataclass(frozen=True)
class ParallelStrategy:
    """How many ways a model is split along each dimension.

    Raises:
        AllocationValidationError: a size is below 1, or the experts' split does not divide the devices.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        if min(dataclasses.astuple(self)) < 1:
            raise AllocationValidationError(f"{self}: sizes start at 1")
        split = self.pp_size * self.etp_size * self.ep_size
        if self.ep_size > 1 and self.world_size % split:
            raise AllocationValidationError(
                f"Expert model parallel size {split} cannot divide world size {self.world_size}."
            )

    @property
    def tp_size(self) -> int:
        """Tensor parallel size."""
        return self.tensor_parallel_size

    @property
    def pp_size(self) -> int:
        """Pipeline parallel size."""
        return self.pipeline_parallel_size

    @property
    def dp_size(self) -> int:
        """Data parallel size: an inference backend's replicas."""
        return self.data_parallel_size

    @property
    def cp_size(self) -> int:
        """Context parallel size."""
        return self.context_parallel_size

    @property
    def ep_size(self) -> int:
        """Expert parallel size."""
        return self.expert_parallel_size

    @property
    def etp_size(self) -> int:
        """Tensor parallel size of the experts."""
        return self.expert_tensor_parallel_size

    @property
    def edp_size(self) -> int:
        """Data parallel size of the experts."""
        if self.ep_size == 1:
            return self.dp_size
        return self.world_size // (self.pp_size * self.etp_size * self.ep_size)

    expert_data_parallel_size = edp_size

    @property
    def world_size(self) -> int:
        """Devices in all; experts are spread over the same ones."""
        return self.dp_size * self.cp_size * self.tp_size * self.pp_size

    def __str__(self) -> str:
        parts = [f"tp={self.tp_size}", f"pp={self.pp_size}", f"dp={self.dp_size}"]
        more = {"cp": self.cp_size, "ep": self.ep_size, "ep_tp": self.etp_size}
        return f"Parallel({','.join(parts + [f'{name}={size}' for name, size in more.items() if size > 1])})"

    @staticmethod
    def parallelism_eq(this: ParallelStrategy, other: ParallelStrategy) -> bool:
        """Whether two strategies split alike."""
        return dataclasses.astuple(this) == dataclasses.astuple(other)


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
        parallel = _strategy(part.sizes) if part.experts is None else _hybrid(part.sizes, part.experts)
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


def _strategy(sizes: Mapping[str, int]) -> ParallelStrategy:
    return ParallelStrategy(**{f"{_AXES[axis]}_parallel_size": size for axis, size in sizes.items()})


def _hybrid(attention: Mapping[str, int], experts: Mapping[str, int]) -> ParallelStrategy:
    """Attention and experts of a mixture-of-experts model, split differently over the same devices."""
    base = _strategy(attention)
    pp, ep, etp = (experts.get(axis, 1) for axis in "pet")
    if pp != base.pp_size:
        raise AllocationValidationError(
            "Pipeline parallel size for attention and FFN modules must be identical. "
            f"Got attention: {base.pp_size}, FFN: {pp}."
        )
    if "d" not in experts and base.world_size % (ep * etp * pp):
        raise AllocationValidationError(
            f"Cannot derive expert dp: attn world_size ({base.world_size}) is not divisible by ffn ep*tp*pp "
            f"({ep * etp * pp})."
        )
    world = experts.get("d", base.world_size // (ep * etp * pp)) * ep * etp * pp
    if world != base.world_size:
        raise InvalidAllocationModeError(
            "World size for expert modules and attention modules must be identical. "
            f"Got attention: {base.world_size}, expert: {world}."
        )
    return dataclasses.replace(base, expert_parallel_size=ep, expert_tensor_parallel_size=etp)


def _dims(**sizes: int) -> str:
    """``d4t2``: the sizes that are not 1, or ``d1``."""
    return "".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1) or "d1"
