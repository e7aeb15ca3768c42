"""From a marked function to its tests: load the dataset once, check it, parametrize in ``pytest_generate_tests``.

Invariant: nothing here starts an engine or imports torch; whatever is wrong with the decorator or the data is one
collection error that names the argument, or the file and the row.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.api import REWARD_ARGUMENTS
from pytest_areal_eval.collection.decorator import EvaluationSpec, has_assertions, spec_of
from pytest_areal_eval.collection.resolution import AREALS, DEFAULT_WORKFLOW, accepted
from pytest_areal_eval.errors import ConfigError, UserError
from pytest_areal_eval.options.models import short_names
from pytest_areal_eval.options.settings import Settings

if TYPE_CHECKING:
    from pytest_areal_eval.datasets import LoadedDataset

ITEM = "item"
MODEL = "areal_model"


@dataclass(frozen=True)
class Plan:
    """One marked function with its data.

    Attributes:
        spec: the decorator.
        function: the test function.
        data: its records as they were read.
        dataset: the same, prepared: with prompts and answers.
        ids: an id for each record.
        selected: indices that the limit and the shard leave.
        strict: whether the body's assertions decide.
        shard: the shard that was asked for, if any.
    """

    spec: EvaluationSpec
    function: Callable[..., Any]
    data: LoadedDataset
    dataset: LoadedDataset
    ids: Sequence[str]
    selected: Sequence[int]
    strict: bool
    shard: tuple[int, int] | None = None

    @property
    def is_async(self) -> bool:
        """Whether the test is its own workflow."""
        return inspect.iscoroutinefunction(self.function)


@dataclass(frozen=True, slots=True)
class ItemParam:
    """The parameter behind the ``item`` fixture: an index into the plan's dataset."""

    plan: Plan = field(repr=False)
    index: int

    @property
    def id(self) -> str:
        """The item's id."""
        return self.plan.ids[self.index]

    @property
    def record(self) -> Mapping[str, Any]:
        """The dataset's record."""
        return self.plan.dataset.records[self.index]


class Planner:
    """Loads each dataset once a session and builds the plans."""

    def __init__(self, settings: Settings, invocation_dir: Path) -> None:
        self.settings = settings
        self.invocation_dir = invocation_dir
        self._datasets: dict[Any, tuple[LoadedDataset, LoadedDataset]] = {}
        self._sources: dict[str, str] = dict(settings.get("dataset", []))
        self._names: set[str] = set()
        self._functions: dict[str, set[str]] = {}

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Turn a marked function into one test for each selected item (and model).

        Raises:
            pytest.Collector.CollectError: the decorator, the function or the data is wrong.
        """
        marks = list(metafunc.definition.iter_markers("evaluation"))
        if not marks:
            return
        self._functions.setdefault(metafunc.function.__name__, set()).add(metafunc.definition.nodeid)
        try:
            plan = self.plan(marks, metafunc.function, metafunc.definition.path)
            _check_arguments(plan, metafunc.fixturenames)
        except UserError as error:
            raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from error
        models = self.settings.get("model", [])
        if len(models) > 1:
            if MODEL not in metafunc.fixturenames:
                raise pytest.Collector.CollectError(
                    f"{metafunc.definition.nodeid}: several models need the default controller"
                )
            metafunc.parametrize(MODEL, models, indirect=True, scope="session", ids=short_names(models))
        params = [ItemParam(plan, index) for index in plan.selected]
        metafunc.parametrize(ITEM, params, indirect=True, ids=[param.id for param in params])

    def title(self, function: str) -> str:
        """What an evaluation is called: its function's name, with the file's where another one has it too.

        Args:
            function: its node id, without parameters.
        """
        name = function.rpartition("::")[2]
        rivals = self._functions.get(name, {function})
        if len(rivals) == 1:
            return name
        titles = [_with_file(rival) for rival in rivals]
        return mine if titles.count(mine := _with_file(function)) == 1 else function

    def unused_sources(self) -> list[str]:
        """Names in ``--dataset NAME=SOURCE`` that no collected evaluation has; the ini file's may serve another day."""
        return [name for name, _ in self.settings.given.get("dataset", []) if name not in self._names]

    def plan(self, marks: Sequence[pytest.Mark], function: Callable[..., Any], file: Path) -> Plan:
        """Validate the decorator, load and check its data, select the items."""
        from pytest_areal_eval.datasets import item_ids, select

        defaults = self.settings.get("evaluation", {})
        spec = spec_of(marks, function, defaults)
        for argument in ("workflow", "reward_fn"):
            value = getattr(spec, argument)
            _resolved(argument, value, "--config" if value == defaults.get(argument) else "@evaluation")
        if spec.workflow is not None or spec.workflow_kwargs:
            _check_workflow(spec)
        data, dataset = self._dataset(spec, function.__name__, file)
        ids = item_ids(dataset)
        shard = self.settings.get("shard")
        selected = select(ids, limit=self.settings.get("limit"), shard=shard, seed=self.settings.get("item-seed", 0))
        strict = has_assertions(function) if spec.strict is None else spec.strict
        return Plan(spec, function, data, dataset, ids, selected, strict, shard)

    def _dataset(self, spec: EvaluationSpec, name: str, file: Path) -> tuple[LoadedDataset, LoadedDataset]:
        """An evaluation's records, as read and as prepared; ``--dataset NAME=SOURCE`` replaces where they come from."""
        self._names.add(name)
        if name in self._sources:
            spec = dataclasses.replace(spec, dataset=self._sources[name], config=None, split=None)
        base_dir = self.invocation_dir if name in self._sources else file.parent
        said = (spec.dataset, spec.config, spec.split, spec.prompt, spec.answer, spec.reward_fn)
        key = (base_dir, _asks(spec), *map(_identity, said))
        if key not in self._datasets:
            trust = bool(self.settings.get("trust-remote-code", False))
            self._datasets[key] = _load(spec, base_dir, trust)
        return self._datasets[key]


def _with_file(function: str) -> str:
    """``test_x::test_gsm`` for ``evals/test_x.py::test_gsm``."""
    file, *rest = function.split("::")
    return "::".join([Path(file).stem, *rest])


def _load(spec: EvaluationSpec, base_dir: Path, trust_remote_code: bool) -> tuple[LoadedDataset, LoadedDataset]:
    from pytest_areal_eval.datasets import load_dataset, prepare, require_columns

    data = dataset = load_dataset(
        spec.dataset, config=spec.config, split=spec.split, base_dir=base_dir, trust_remote_code=trust_remote_code
    )
    named = {"prompt": spec.prompt, "answer": spec.answer}
    columns = {use: column for use, column in named.items() if isinstance(column, str)}
    if spec.answer is None and _wants(spec.reward_fn, "answer"):
        columns["answer"] = "answer"
    require_columns(data, columns)
    if _asks(spec) or spec.prompt is not None or spec.answer is not None:
        dataset = prepare(data, prompt=spec.prompt, answer=spec.answer)
    if _asks(spec):
        _check_reward(spec.reward_fn, dataset.records[0])
    if spec.check_gold and spec.reward_fn is not None:
        _check_golds(spec, dataset)
    return data, dataset


ASKING = ("RLVRWorkflow", "MultiTurnWorkflow")


def _asks(spec: EvaluationSpec) -> bool:
    """Whether the workflow is one of ours that need ``messages`` in each record."""
    name = spec.workflow if isinstance(spec.workflow, str) else getattr(spec.workflow, "__name__", "")
    return spec.reward_fn is not None and (spec.workflow is None or name.rpartition(".")[2] in ASKING)


def _identity(value: Any) -> Any:
    """A dictionary key for what a decorator may hold: text by value, anything else by identity."""
    return value if isinstance(value, str | None) else id(value)


def _check_arguments(plan: Plan, fixturenames: Sequence[str]) -> None:
    name = plan.function.__name__
    needed = ("item", "engine") if plan.is_async else ("rollout",)
    missing = [argument for argument in needed if argument not in fixturenames]
    if missing:
        form = f"async def {name}(item, engine)" if plan.is_async else f"def {name}(rollout)"
        raise ConfigError(f"an evaluation takes {' and '.join(missing)} as argument", f"Write {form}: …")


def _wants(reward_fn: Any, column: str) -> bool:
    """Whether a reward function needs an argument of this name; one whose signature cannot be read does not."""
    try:
        parameters = inspect.signature(_resolved("reward_fn", reward_fn)).parameters
    except (TypeError, ValueError):
        return False
    return column in parameters and parameters[column].default is inspect.Parameter.empty


def _check_reward(reward_fn: Any, record: Mapping[str, Any]) -> None:
    """Whether a reward function can be called as our workflows call it; else every item would be the same error."""
    function = _resolved("reward_fn", reward_fn)
    columns = {name: value for name, value in record.items() if name not in REWARD_ARGUMENTS}
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*REWARD_ARGUMENTS, **columns)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"@evaluation: reward_fn: {name}{signature}: {error}",
            f"Write def {name}({', '.join(REWARD_ARGUMENTS)}, **columns); the columns are: {', '.join(columns)}.",
        ) from None


def _resolved(argument: str, value: Any, said_by: str = "@evaluation") -> Any:
    """The object that a decorator's argument names; a name that leads nowhere is found before anything starts."""
    if not isinstance(value, str):
        return value
    from pytest_areal_eval.rewards.importing import import_from_string

    try:
        found = import_from_string(value)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        raise ConfigError(f"{said_by}: {argument}={value!r}: {error}") from error
    if argument == "reward_fn" and not callable(found):
        raise ConfigError(f"{said_by}: {argument}={value!r} is a {type(found).__name__}, not a function")
    return found


def _check_workflow(spec: EvaluationSpec) -> None:
    """Whether it is a workflow that can be constructed; else an engine would start in vain."""
    from pytest_areal_eval.workflows.base import check_arguments, check_workflow, describe_workflow

    workflow = DEFAULT_WORKFLOW if spec.workflow is None else spec.workflow
    found, named = _resolved("workflow", workflow), describe_workflow(workflow)
    check_workflow(found, named)
    if inspect.isclass(found):
        ours = accepted(found, AREALS) - ({"reward_fn"} if spec.reward_fn is None else set())
        check_arguments(found, {*ours, *spec.workflow_kwargs}, named)


def _check_golds(spec: EvaluationSpec, dataset: LoadedDataset) -> None:
    """Ask the reward, where it can tell, whether each gold verifies against itself."""
    reward = _resolved("reward_fn", spec.reward_fn)
    verify_gold = getattr(reward, "verify_gold", None)
    if verify_gold is None:
        return
    wrong = []
    for index, record in enumerate(dataset.scan()):
        reason = verify_gold(record["answer"])
        if reason is not None:
            wrong.append(f"  {dataset.where(index)}: {reason}")
    if wrong:
        more = [f"  … and {len(wrong) - 5} more"] if len(wrong) > 5 else []
        several = f"{len(wrong)} gold answers do not verify against themselves:"
        said = "1 gold answer does not verify against itself:" if len(wrong) == 1 else several
        raise ConfigError(
            "\n".join([said, *wrong[:5], *more]),
            "Correct the dataset, give answer= a function that extracts the gold, or set check_gold=False.",
        )
