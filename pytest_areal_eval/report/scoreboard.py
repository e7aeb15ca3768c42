"""Collects the results that reports carry and makes one summary for each evaluation.

Invariant: it reads ``pytest_runtest_logreport`` alone, so that a result that no report carried is not in any number; an
item that was run again (a rerun) counts once, by its last report.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.report.examples import SHOWN, Example, example_lines
from pytest_areal_eval.report.spans import Spans
from pytest_areal_eval.stats import Gate, ItemResult, Summary, summarize

if TYPE_CHECKING:
    import pytest


@dataclass
class Row:
    """One evaluation's place on the scoreboard.

    Attributes:
        key: node id of its tests without the item.
        name: for the table.
        evaluation: the same without the model, where there are several.
        model: the model's short name, where there are several.
        file: path of the test file, for the gates' location.
        gates: its conditions.
        n_samples: episodes for each item.
        n_selected: tests that this session selected.
        n_planned: tests that the dataset, the limit and the shard give.
        n_total: rows of the dataset.
        pass_mark: below it an item is missed.
        shard: ``(i, n)`` where only a shard was run.
        results: by item id.
        missed_nodes: node ids of its missed tests.
        examples: its worst items below the pass mark, the worst first.
        spans: when its episodes ran.
        reasons: of the items with errors, why, by id.
        xfails: of the items marked xfail, the reason, and whether the mark showed to be strict.
    """

    key: str
    name: str
    evaluation: str
    model: str
    file: str
    gates: Sequence[Gate]
    n_samples: int
    n_selected: int
    n_planned: int
    n_total: int
    pass_mark: float
    shard: tuple[int, int] | None = None
    results: dict[str, ItemResult] = field(default_factory=dict)
    missed_nodes: set[str] = field(default_factory=set)
    examples: list[Example] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    spans: Spans = field(default_factory=Spans)
    xfails: dict[str, tuple[str, bool]] = field(default_factory=dict)
    _summary: tuple[int, Summary] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def names(self) -> set[str]:
        """What a gate may call it."""
        return {self.key, *names_of(self.name), *names_of(self.evaluation)}

    def summary(self) -> Summary:
        """Its numbers so far; computed once for each state of the results."""
        if self._summary is None or self._summary[0] != len(self.results):
            self._summary = (len(self.results), self._summarize())
        return self._summary[1]

    def _summarize(self) -> Summary:
        return summarize(
            self.name,
            list(self.results.values()),
            n_samples=self.n_samples,
            n_selected=self.n_selected,
            n_total=self.n_total,
            pass_mark=self.pass_mark,
            ks=[gate.k for gate in self.gates if gate.k is not None and gate.k <= self.n_samples],
        )

    def expected_failure(self) -> tuple[str, bool] | None:
        """Why its gates are expected to fail, and whether strictly: all of its items are marked so."""
        marked = self.xfails.keys() >= self.results.keys()
        if not marked or not self.xfails:
            return None
        return next(iter(self.xfails.values()))[0], any(strict for _, strict in self.xfails.values())

    def keep(self, item_id: str, example: Example | None) -> None:
        """Take an item for :attr:`examples` if it is one of the worst; with None it is none any more."""
        others = [other for other in self.examples if other.item_id != item_id]
        self.examples = sorted([*others, example])[:SHOWN] if example is not None else others

    def explain(self, item_id: str, reason: str) -> None:
        """Take why an item has an error for :attr:`reasons`; with "" it has none any more."""
        self.reasons.pop(item_id, None)
        if reason:
            self.reasons[item_id] = sys.intern(reason)  # most are alike

    def example_lines(self) -> list[str]:
        """The examples for a terminal."""
        return example_lines(self.examples, self.summary().missed)

    def partial_reason(self) -> str | None:
        """Why gates cannot speak of the whole evaluation; None where they can."""
        if self.shard is not None:
            return f"shard {self.shard[0]}/{self.shard[1]}: {self.n_planned} of {self.n_total} items"
        if self.n_selected < self.n_planned:
            return f"{self.n_selected} of {self.n_planned} items were selected"
        if len(self.results) < self.n_planned:
            return f"{len(self.results)} of {self.n_planned} items were reported"
        return None


def names_of(name: str) -> set[str]:
    """An evaluation's name, also without its parameters and without its file."""
    bare, bracket, parameters = name.partition("[")
    function = bare.rpartition("::")[2]
    return {name, bare, function, function + bracket + parameters}


_ONLY_WORD: dict[str, dict[str, Any]] = {word: {"word": word} for word in ("", "missed")}


class Scoreboard:
    """All rows of a session, by key."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.changed = 0

    def add(self, row: Row) -> None:
        """Expect an evaluation's results."""
        self.rows.setdefault(row.key, row)

    def receive(self, report: pytest.TestReport) -> None:
        """Take a report's result, if it carries one, and leave its word alone there.

        pytest keeps every report to the end: with its result each would be 0.9 kB larger.
        """
        carried: dict[str, Any] = getattr(report, "areal_eval", {})
        if carried.get("group") not in self.rows:
            return
        row = self.rows[carried["group"]]
        result = ItemResult.from_dict(carried["result"])
        vars(report)["areal_eval"] = _ONLY_WORD[carried["word"]]
        row.results[result.item_id] = result
        row._summary = None
        row.xfails.pop(result.item_id, None)  # of an earlier time
        if carried["xfail"] is not None:
            row.xfails[result.item_id] = tuple(carried["xfail"])
        row.keep(result.item_id, Example.from_dict(carried["example"]) if "example" in carried else None)
        row.explain(result.item_id, carried.get("reason", ""))
        row.missed_nodes.discard(report.nodeid)  # of an earlier time
        if carried["word"]:
            row.missed_nodes.add(report.nodeid)
        row.spans.update(carried["spans"])
        self.changed = time.monotonic_ns()

    def with_results(self) -> list[Row]:
        """The rows that have anything to show."""
        return [row for row in self.rows.values() if row.results]
