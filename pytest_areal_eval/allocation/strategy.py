"""How a model is split over its devices, with AReaL's names; of a mixture of experts, twice over the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_areal_eval.allocation.syntax import AllocationValidationError, InvalidAllocationModeError

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


def strategy_of(sizes: Mapping[str, int]) -> ParallelStrategy:
    """Sizes by axis (``d``, ``p``, ``t``, ``c``, ``e``) as a strategy."""
    return ParallelStrategy(**{f"{_AXES[axis]}_parallel_size": size for axis, size in sizes.items()})


def hybrid_of(attention: Mapping[str, int], experts: Mapping[str, int]) -> ParallelStrategy:
    """Attention and experts of a mixture-of-experts model, split differently over the same devices."""
    base = strategy_of(attention)
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
