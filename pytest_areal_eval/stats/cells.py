"""What a tracker keeps of each key: a count, a sum, a minimum and a maximum in float64, which merge without loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

State = dict[str, dict[str, Any]]
"""A tracker's content as JSON: for each full key its ``type``, ``sum``, ``count``, ``min`` and ``max``."""


class ReduceType(StrEnum):
    """How a key's values become what is exported."""

    AVG_MIN_MAX = "avg_min_max"
    AVG = "avg"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    SCALAR = "scalar"


@dataclass
class Cell:
    """Everything that is kept of one key, in float64."""

    type: ReduceType
    sum: float = 0.0
    count: int = 0
    min: float = math.inf
    max: float = -math.inf

    def export(self, key: str) -> dict[str, float]:
        """The keys that AReaL exports; a key that was never unmasked has no mean, minimum or maximum."""
        if self.type is ReduceType.SUM:
            return {key: self.sum}
        if not self.count:
            return {}
        average = self.sum / self.count
        if self.type is ReduceType.SCALAR:
            return {key: average, f"{key}__count": self.count}
        if self.type is ReduceType.AVG_MIN_MAX:
            return {f"{key}/avg": average, f"{key}/min": self.min, f"{key}/max": self.max}
        return {key: {ReduceType.AVG: average, ReduceType.MIN: self.min, ReduceType.MAX: self.max}[self.type]}

    def state(self) -> dict[str, Any]:
        """The cell as strict JSON, which has no infinity and no NaN: those become strings."""
        numbers = {"sum": self.sum, "min": self.min, "max": self.max}
        strict = {name: x if math.isfinite(x) else str(x) for name, x in numbers.items()}
        return {"type": self.type.value, "count": self.count, **strict}

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Cell:
        """Read what :meth:`state` gave."""
        low, high = float(raw["min"]), float(raw["max"])
        return cls(ReduceType(raw["type"]), float(raw["sum"]), int(raw["count"]), low, high)


@dataclass(frozen=True)
class Array:
    """An array of any library, flattened."""

    values: list[Any]
    shape: tuple[int, ...]

    @classmethod
    def read(cls, key: str, value: Any) -> Array:
        """Flatten a tensor, an array, nested lists of either, or one number; a ragged list is a ValueError."""
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            return cls([value], ())
        parts = [cls.read(key, part) for part in value]
        shapes = {part.shape for part in parts}
        if len(shapes) > 1:
            raise ValueError(f"{key!r} is ragged: its parts have the shapes {sorted(shapes)}")
        return cls([x for part in parts for x in part.values], (len(parts), *(shapes.pop() if shapes else ())))


def cell_of(values: list[float], reduce_type: ReduceType) -> Cell:
    """The cell of some values."""
    cell = Cell(reduce_type, sum(values, 0.0), len(values))
    for value in values:
        cell.min, cell.max = _least(cell.min, value), -_least(-cell.max, -value)
    return cell


def add_cell(cells: dict[str, Cell], key: str, new: Cell) -> None:
    """Merge ``new`` into the key's cell; a key that changes its type is a ValueError."""
    cell = cells.setdefault(key, Cell(new.type))
    check_type(key, new, cell.type)
    cell.sum += new.sum
    cell.count += new.count
    cell.min, cell.max = _least(cell.min, new.min), -_least(-cell.max, -new.max)


def add_apart(cells: dict[str, Cell], key: str, new: Cell) -> None:
    """Merge as :func:`add_cell`; what comes as something else than before gets a key of its own, ``key (type)``."""
    same = cells.get(key, new).type is new.type
    add_cell(cells, key if same else f"{key} ({new.type})", new)


def check_type(key: str, new: Cell, before: ReduceType) -> None:
    """Raise ValueError where a key that was recorded as ``before`` comes as something else."""
    if new.type is not before:
        raise ValueError(f"{key!r} was recorded as {before} before and cannot be {new.type} as well")


def export_cells(cells: Mapping[str, Cell]) -> dict[str, float]:
    """What AReaL's ``export`` gives, in the order of recording."""
    return {name: value for key, cell in cells.items() for name, value in cell.export(key).items()}


def cells_state(cells: Mapping[str, Cell]) -> State:
    """All cells as JSON."""
    return {key: cell.state() for key, cell in cells.items()}


def _least(a: float, b: float) -> float:
    """The smaller one, or NaN where either is: Python's min drops it or not by the order of its arguments."""
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)
