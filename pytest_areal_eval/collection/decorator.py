"""The ``@evaluation(...)`` decorator, its settings and their validation.

``evaluation(...)`` is ``pytest.mark.evaluation`` with a typed signature.  Marks of a module and of a class are defaults
for those of a function.  Nothing is validated or read at import; mistakes are collection errors that name the argument.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

import pytest

from pytest_areal_eval.collection.arguments import CHECKS
from pytest_areal_eval.errors import ConfigError

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "max_new_tokens",
    "min_new_tokens",
    "greedy",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "frequency_penalty",
)
"""Arguments that are generation settings; a ``parametrize`` argument of such a name replaces the evaluation's."""


class EvaluationArguments(TypedDict, total=False):
    """Arguments of :func:`evaluation`."""

    config: str
    split: str
    prompt: str | Callable[[Mapping[str, Any]], Any]
    answer: str | Callable[[Mapping[str, Any]], Any]
    workflow: Any
    workflow_kwargs: Mapping[str, Any]
    reward_fn: str | Callable[..., Any]
    reward_range: tuple[float, float]
    gates: Sequence[str] | str
    pass_mark: float
    strict: bool
    n_samples: int
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    min_new_tokens: int
    greedy: bool
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    frequency_penalty: float
    enable_thinking: bool
    template_kwargs: Mapping[str, Any]
    episode_timeout: float
    reward_timeout: float
    check_gold: bool


def evaluation(dataset: Any = None, **settings: Unpack[EvaluationArguments]) -> pytest.MarkDecorator:
    """Mark a test function, a class or a module (``pytestmark``) as an evaluation.

    Args:
        dataset: a hub name (``org/name[:split]``), a local file or directory, a callable, a dotted name of one, or a
            sequence of dicts; paths are relative to the test file's folder, else to the current one.
        config: the hub dataset's configuration.
        split: its split.
        prompt: column, or function of the record, that gives the prompt (a string or a list of messages).
        answer: column, or function of the record, that gives the expected answer.
        workflow: dotted name, class or instance with ``async arun_episode(engine, data)``; default: one question, one
            answer (RLVR).  An ``async def`` test is its own workflow.
        workflow_kwargs: further arguments of the workflow's constructor.
        reward_fn: ``(prompt, completions, prompt_ids, completion_ids, **columns)`` → reward; callable or dotted name.
        reward_range: lowest and highest legal reward; default (0, 1), and none for a workflow that grades itself.
        gates: conditions on the aggregate, such as ``"reward >= 0.6"`` or ``"pass@4 >= 0.5"``.
        pass_mark: a scored item below it is reported as missed; default 1.0.
        strict: whether the body's assertions decide; default: whether it has any.
        n_samples: episodes for each item.
        temperature, top_p, top_k, max_new_tokens, min_new_tokens, greedy, stop, stop_token_ids, ignore_eos,
            frequency_penalty: generation settings.
        enable_thinking, template_kwargs: arguments of the chat template.
        episode_timeout, reward_timeout: limits in seconds.
        check_gold: whether golds are checked against themselves at collection; default True where the reward can tell.
    """
    if inspect.isfunction(dataset) and dataset.__name__.startswith("test") and not settings:
        raise pytest.Collector.CollectError(
            f"{dataset.__name__}: @evaluation without arguments\n"
            f"Write @evaluation(dataset, reward_fn=...) above def {dataset.__name__}(rollout)."
        )
    given: dict[str, Any] = dict(settings)
    if dataset is not None:
        given["dataset"] = dataset
    return pytest.mark.evaluation.with_args(**given)


@dataclass(frozen=True)
class EvaluationSpec:
    """A validated decorator.  None means "not said here"."""

    dataset: Any
    config: str | None = None
    split: str | None = None
    prompt: str | Callable[..., Any] | None = None
    answer: str | Callable[..., Any] | None = None
    workflow: Any = None
    workflow_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reward_fn: str | Callable[..., Any] | None = None
    reward_range: tuple[float, float] | None = None
    gates: tuple[str, ...] = ()
    pass_mark: float = 1.0
    strict: bool | None = None
    n_samples: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    greedy: bool | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    frequency_penalty: float | None = None
    enable_thinking: bool | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    episode_timeout: float | None = None
    reward_timeout: float | None = None
    check_gold: bool = True

    @property
    def sampling(self) -> dict[str, Any]:
        """The generation settings that this decorator sets."""
        return {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}


ARGUMENTS = tuple(f.name for f in fields(EvaluationSpec))


def spec_of(
    marks: Iterable[pytest.Mark], function: Callable[..., Any], defaults: Mapping[str, Any] = MappingProxyType({})
) -> EvaluationSpec:
    """Merge marks (the closest first, as ``iter_markers`` gives them) into one validated spec.

    Args:
        marks: the decorators.
        function: the test.
        defaults: a configuration's ``dataset`` and ``split``, ``workflow`` and ``reward_fn``, each pair for decorators
            that name neither.

    Raises:
        ConfigError: an argument is unknown or has a wrong value; the message names it and the nearest right one.
    """
    merged: dict[str, Any] = {}
    for mark in reversed(list(marks)):
        merged |= _named(mark)
    for name in merged:
        if name not in ARGUMENTS:
            raise ConfigError(f"@evaluation: unknown argument {name!r}{_nearest(name)}")
    merged = _completed(merged, defaults, function)
    if "dataset" not in merged:
        raise ConfigError("@evaluation: no dataset", "Give a file, a hub name, a callable or a sequence of dicts.")
    checked = {name: CHECKS[name](name, value) if name in CHECKS else value for name, value in merged.items()}
    spec = EvaluationSpec(**checked)
    if inspect.iscoroutinefunction(function):
        if spec.workflow is not None or spec.reward_fn is not None:
            wrong = "workflow" if spec.workflow is not None else "reward_fn"
            raise ConfigError(
                f"@evaluation: {wrong}= on an async test", "An async test is its own workflow: return the reward."
            )
    elif spec.workflow is None and spec.reward_fn is None:
        raise ConfigError(
            "@evaluation: neither reward_fn= nor workflow=",
            "Name the reward, such as reward_fn='pytest_areal_eval.rewards.gsm8k_reward_fn'.",
        )
    return spec


def _completed(given: Mapping[str, Any], defaults: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments, with what a configuration says where they are silent."""
    pairs = [("dataset", "split")]
    if not inspect.iscoroutinefunction(function):
        pairs.append(("workflow", "reward_fn"))
    taken = {name for pair in pairs if not set(pair) & set(given) for name in pair}
    return {name: value for name, value in defaults.items() if name in taken} | dict(given)


def has_assertions(function: Callable[..., Any]) -> bool:
    """Whether a test's body asserts: then it decides, and not the score.

    ``assert``, ``raise AssertionError``, ``pytest.fail`` and ``pytest.raises`` do; another exception is an error.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return "AssertionError" in function.__code__.co_names
    return any(isinstance(node, ast.Assert) or _is_fail(node) for node in ast.walk(tree))


def _is_fail(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise):
        return any(isinstance(name, ast.Name) and name.id == "AssertionError" for name in ast.walk(node))
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("fail", "raises")


def _named(mark: pytest.Mark) -> dict[str, Any]:
    if len(mark.args) > 1:
        raise ConfigError(f"@evaluation: {len(mark.args)} positional arguments; only the dataset may be one")
    return ({"dataset": mark.args[0]} if mark.args else {}) | dict(mark.kwargs)


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, ARGUMENTS, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(ARGUMENTS)}"
