"""What is evaluated together: the tests of one function, with one set of parameters and one model.

Invariant: a group's tests are neighbours in collection order, and differ in nothing but their item.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.collection.parametrize import ITEM, MODEL, ItemParam, Plan, Planner
from pytest_areal_eval.options.models import short_names

if TYPE_CHECKING:
    from pytest_areal_eval.api import GenerationHyperparameters
    from pytest_areal_eval.controller import RolloutController

OWN_ARGUMENTS = {ITEM, MODEL, "engine", "rollout", "controller", "scheduler", "request", "self"}


@dataclass(eq=False)
class Group:
    """One evaluation, for one set of parameters and one model: a row of the table, and what gates are decided on.

    Attributes:
        key: node id of its tests without the item.
        name: for tables and the journal: the function's name with the parameters and the model.
        evaluation: the same without the model.
        plan: the marked function with its data.
        params: values of the other ``parametrize`` arguments.
        model: the checkpoint, where there are several.
        model_name: its short name.
        items: the selected tests, in collection order.
        started: whether its items were handed to a controller.
        controller: that one.
        workflow: what its episodes run, once started.
        sampling: how they sample.
        template: their chat template arguments.
        ready: tests whose rollouts are done and not yet reported, in the order of completion.
    """

    key: str
    name: str
    evaluation: str
    plan: Plan
    params: Mapping[str, Any]
    model: str | None
    model_name: str = ""
    items: list[pytest.Function] = field(default_factory=list)
    started: bool = False
    controller: RolloutController | None = None
    workflow: Any = None
    sampling: GenerationHyperparameters | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    ready: deque[pytest.Item] = field(default_factory=deque)

    @property
    def extra_arguments(self) -> list[str]:
        """Arguments of an async test that are the user's own fixtures; their values are shared by all episodes."""
        if not self.plan.is_async:
            return []
        names = inspect.signature(self.plan.function).parameters
        return [name for name in names if name not in OWN_ARGUMENTS and name not in self.params]

    @property
    def may_be_skipped(self) -> bool:
        """Whether a skip mark stands on its tests; then nothing is submitted before its own setup ran."""
        first = self.items[0]
        return any(first.get_closest_marker(name) for name in ("skip", "skipif"))


_MEMBERSHIP = pytest.StashKey[tuple[Group, ItemParam]]()


def membership(item: pytest.Item) -> tuple[Group, ItemParam] | None:
    """The group and the parameter of an evaluation's test; None for any other test."""
    return item.stash.get(_MEMBERSHIP, None)


def param_of(item: pytest.Item) -> ItemParam:
    """The parameter of a test that is an evaluation's."""
    return item.stash[_MEMBERSHIP][1]


def group_of(item: pytest.Item) -> Group:
    """The group of a test that is an evaluation's."""
    return item.stash[_MEMBERSHIP][0]


class Grouping:
    """Sorts the selected tests into groups.

    Args:
        planner: knows the evaluations' titles.
        models: the checkpoints, as given.
    """

    def __init__(self, planner: Planner, models: Sequence[str]) -> None:
        self._planner = planner
        self._short_names = dict(zip(models, short_names(models), strict=True))

    def of(self, items: Sequence[pytest.Item]) -> dict[str, Group]:
        """The groups by key, in the order of their first tests; each test learns its own."""
        groups: dict[str, Group] = {}
        for item in items:
            callspec = getattr(item, "callspec", None)
            param = callspec.params.get(ITEM) if callspec else None
            if isinstance(item, pytest.Function) and isinstance(param, ItemParam):
                group = self._group_of(item, param, groups)
                group.items.append(item)
                item.stash[_MEMBERSHIP] = (group, param)
        return groups

    def _group_of(self, item: pytest.Function, param: ItemParam, groups: dict[str, Group]) -> Group:
        before = item.callspec.id[: -len(param.id)].rstrip("-")
        function = item.nodeid.removesuffix(item.name) + item.originalname
        key = f"{function}{_bracketed(before)}"
        if key not in groups:
            params = {name: value for name, value in item.callspec.params.items() if name not in (ITEM, MODEL)}
            model = str(item.callspec.params[MODEL]) if MODEL in item.callspec.params else None
            short = self._short_names[model] if model is not None else ""
            title = self._planner.title(function)
            evaluation = title + _bracketed(before.removesuffix(short).rstrip("-"))
            groups[key] = Group(key, f"{title}{_bracketed(before)}", evaluation, param.plan, params, model, short)
        return groups[key]


def iter_blocks(items: Sequence[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """Cut the session's tests into blocks: all neighbours of one group together, any other test alone."""
    block: list[pytest.Item] = []
    for item in items:
        found = membership(item)
        if block and found is not None and (mine := membership(block[0])) is not None and mine[0] is found[0]:
            block.append(item)
            continue
        if block:
            yield block
        block = [item]
    if block:
        yield block


def _bracketed(text: str) -> str:
    return f"[{text}]" if text else ""
