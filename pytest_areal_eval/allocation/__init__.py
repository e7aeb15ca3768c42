"""What a backend specification asks for: which engine, how many replicas, how each is split over GPUs.

Invariant: a specification either parses or is one ``ConfigError`` that shows the place; ``str()`` of what it parses to
parses back to an equal object.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_areal_eval.allocation.model import AllocationMode, ModelAllocation, SchedulingStrategy
from pytest_areal_eval.allocation.strategy import ParallelStrategy
from pytest_areal_eval.allocation.syntax import (
    EXAMPLE,
    TRAINING_BACKENDS,
    AllocationSyntaxError,
    AllocationValidationError,
    InvalidAllocationModeError,
)
from pytest_areal_eval.errors import ConfigError

__all__ = [
    "Allocation",
    "AllocationMode",
    "AllocationSyntaxError",
    "AllocationValidationError",
    "InvalidAllocationModeError",
    "ModelAllocation",
    "ParallelStrategy",
    "SchedulingStrategy",
    "parse_allocation",
]


@dataclass(frozen=True)
class Allocation:
    """An inference backend: ``data_parallel_size`` replicas of ``tp_size * pp_size`` GPUs each."""

    backend: str
    data_parallel_size: int = 1
    tp_size: int = 1
    pp_size: int = 1

    def __str__(self) -> str:
        return f"{self.backend}:d{self.data_parallel_size}p{self.pp_size}t{self.tp_size}"


def parse_allocation(text: str, source: str = "--backend=") -> Allocation:
    """Read an inference backend's specification such as ``sglang:d12p1t1``; what is left out is 1.

    Args:
        text: the specification; a name in brackets is accepted and says nothing.
        source: what the text is the value of, for messages.

    Raises:
        ConfigError: it cannot be read (with the column and what was expected there), is more than one allocation, or
            names a backend that trains.
    """
    try:
        model = ModelAllocation.from_str(text)
    except AllocationValidationError as error:
        raise ConfigError(f"{source}{error.args[0]}", error.hint or EXAMPLE) from None
    if model.backend in TRAINING_BACKENDS:
        raise ConfigError(f"{source}{text}: {model.backend} trains and serves nothing", EXAMPLE)
    split = model.parallel
    return Allocation(model.backend, split.dp_size, split.tp_size, split.pp_size)
