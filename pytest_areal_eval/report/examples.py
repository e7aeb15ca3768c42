"""A few of an evaluation's worst items, with what was extracted: a parser's fault looks like a model's otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.report.text import answer_of, printable

SHOWN = 5
LONGEST_GOLD = 60


@dataclass(frozen=True, order=True)
class Example:
    """An item below the pass mark, by its worst episode; the worst item is the smallest.

    Attributes:
        reward: the item's.
        item_id: its id.
        status: of its worst episode.
        answer: what was extracted there, else the end of what the model wrote, or the error.
        gold: what was expected, where the grader tells.
    """

    reward: float
    item_id: str
    status: str
    answer: str
    gold: str

    def to_dict(self) -> dict[str, Any]:
        """For a report's way from an xdist worker."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Example:
        """Read what :meth:`to_dict` wrote."""
        return cls(**data)


def example_of(item_id: str, episodes: Sequence[Episode]) -> Example:
    """What there is to show of an item."""
    worst = min(episodes, key=lambda e: -1.0 if e.reward is None else e.reward)
    reward = sum(e.counted_reward for e in episodes) / len(episodes)
    gold = " ".join(worst.gold.split())[:LONGEST_GOLD] if worst.gold else ""
    return Example(reward, item_id, worst.status.value, answer_of(worst), gold)


def example_lines(examples: Iterable[Example], missed: int) -> list[str]:
    """The examples for a terminal, with how many items there are of the kind."""
    rows = [(e.item_id, f"{e.reward:.3g}", e.status, e.answer, e.gold) for e in examples]
    if not rows:
        return []
    cells = [[printable(cell) for cell in row] for row in [("item", "reward", "status", "answer", "gold"), *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in cells]
    return [f"{len(rows)} of {missed} missed items:", *(f"  {line}" for line in lines)]
