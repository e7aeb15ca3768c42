"""What a group's episodes are run with: how many, how they sample, the template's arguments, the workflow."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.api import GenerationHyperparameters
from pytest_areal_eval.collection.decorator import SAMPLING
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.settings import Settings
from pytest_areal_eval.rewards.values import DEFAULT_RANGE

if TYPE_CHECKING:
    from pytest_areal_eval.collection.groups import Group
    from pytest_areal_eval.engines.base import EngineInfo


TIMEOUT_GRACE_S = 1.0
DEFAULT_WORKFLOW = "pytest_areal_eval.workflows.RLVRWorkflow"
AREALS = {"reward_fn", "gconfig", "tokenizer", "enable_thinking"}
"""Parameters of AReaL's workflows; others of those names in somebody else's class may mean anything."""
_OUR_WORKFLOWS = ("pytest_areal_eval.workflows.", "pytest_areal_eval.areal_shim.rlvr")
CONFIGURABLE = (*SAMPLING, "max_tokens", "skip_special_tokens")
"""Generation settings that the command line, the ini file or a configuration may give."""


def samples_of(group: Group, settings: Settings) -> int:
    """Episodes for each item of a group."""
    return int(settings.resolve("n-samples", group.params.get("n_samples", group.plan.spec.n_samples), 1))


def time_limit_of(item: pytest.Item, decorated_s: float | None, settings: Settings) -> float:
    """Limit of an item's episodes in seconds: the evaluation's, or pytest-timeout's where that is shorter.

    pytest-timeout watches a test only while pytest runs it, and a rollout is under way long before.  Where it does
    watch, in collection order, it shall speak first: its alarm must not meet a test that is being reported.
    """
    own = float(settings.resolve("episode-timeout", decorated_s, 600.0))
    config, mark = item.config, item.get_closest_marker("timeout")
    if not config.pluginmanager.hasplugin("timeout"):
        return own
    if mark is not None:
        theirs = mark.args[0] if mark.args else mark.kwargs.get("timeout")
    else:
        theirs = config.getoption("timeout", None) or config.getini("timeout")
    return min(own, float(theirs) + TIMEOUT_GRACE_S) if theirs and float(theirs) > 0 else own


def sampling_of(group: Group, settings: Settings) -> GenerationHyperparameters:
    """A group's generation settings: command line, ``parametrize``, decorator, ini, YAML, else a default.

    With one episode an item the default is greedy; with several it is temperature 1, since equal answers tell nothing.

    Raises:
        ConfigError: the shortest answer is longer than the longest one.
    """
    said: dict[str, Any] = dict(group.plan.spec.sampling)
    said |= {name: value for name, value in group.params.items() if name in SAMPLING}
    over_greedy = "temperature" in said  # a temperature outdoes a "greedy" of less standing
    for key in CONFIGURABLE:
        name = key.replace("_", "-")
        below = None if key == "greedy" and over_greedy else settings.get(name)
        said[key] = settings.given.get(name, said.get(key, below))
    said = {name: list(v) if isinstance(v, tuple) else v for name, v in said.items() if v is not None}
    if "temperature" not in said and "greedy" not in said:
        said["greedy"] = samples_of(group, settings) == 1
    if "temperature" in settings.given and "greedy" not in settings.given:
        said["greedy"] = False
    if said.get("greedy") or said.get("temperature") == 0:
        said |= {"greedy": True, "temperature": 0.0}
    least, most = said.get("min_new_tokens", 0), said.get("max_new_tokens")
    if most is not None and least > most:
        raise ConfigError(f"{group.name}: min_new_tokens={least} is more than max_new_tokens={most}")
    return GenerationHyperparameters(**said)


def check_room(group: Group, settings: Settings, sampling: GenerationHyperparameters, context: int | None) -> None:
    """Refuse answers longer than a server's context, where somebody asked for them.

    Raises:
        ConfigError: what was asked for, and what there is.
    """
    name = "max_new_tokens"
    asked = name in {*group.plan.spec.sampling, *group.params} or settings.get("max-new-tokens") is not None
    if asked and context is not None and sampling.max_new_tokens >= context:
        raise ConfigError(
            f"{group.name} asks for {name}={sampling.max_new_tokens}; the server's context is {context} tokens, prompt "
            "and answer together",
            f"Ask for fewer: --max-new-tokens={context // 2}; or start the server with a longer context.",
        )


def check_honoured(
    group: Group, sampling: GenerationHyperparameters, template: Mapping[str, Any], info: EngineInfo
) -> None:
    """Refuse settings that a hosted API does not have: once, not for each item.

    Raises:
        ConfigError: which ones.
    """
    from pytest_areal_eval.engines.openai import NAME_KIND, beyond_openai

    refused = beyond_openai(sampling, template) if info.openai_only else []
    if refused:
        raise ConfigError(f"{group.name} sets {', '.join(refused)}, which OpenAI's chat API does not have", NAME_KIND)


def template_of(group: Group) -> dict[str, Any]:
    """A group's chat template arguments."""
    thinking = group.params.get("enable_thinking", group.plan.spec.enable_thinking)
    return dict(group.plan.spec.template_kwargs) | ({} if thinking is None else {"enable_thinking": thinking})


def reward_range_of(group: Group) -> tuple[float, float] | None:
    """The range that an episode's reward is held to, whatever gives it; None: every finite number.

    Workflows and agents that were written for training reward as they like, unless the evaluation says otherwise;
    what a ``reward_fn`` returns is checked where it is graded, too.
    """
    return group.plan.spec.reward_range or (DEFAULT_RANGE if group.plan.is_async else None)


def build_workflow(group: Group, controller: Any, settings: Settings, arguments: Mapping[str, Any]) -> Any:
    """The workflow that a group's episodes run."""
    from pytest_areal_eval.rewards.importing import import_from_string
    from pytest_areal_eval.workflows.agent import AgentOptions
    from pytest_areal_eval.workflows.base import resolve_workflow
    from pytest_areal_eval.workflows.testbody import TestBodyWorkflow

    plan, spec = group.plan, group.plan.spec
    if plan.is_async:
        shared = {name: arguments[name] for name in group.extra_arguments} | dict(group.params)
        failures = (AssertionError, pytest.fail.Exception)
        return TestBodyWorkflow(group.items[0].obj, shared, strict=plan.strict, failures=failures)
    kwargs = dict(spec.workflow_kwargs)
    known = {
        "reward_fn": spec.reward_fn,
        "gconfig": sampling_of(group, settings),
        "tokenizer": controller.tokenizer,
        "enable_thinking": group.params.get("enable_thinking", spec.enable_thinking),
        "template_kwargs": spec.template_kwargs or None,
        "reward_timeout_s": settings.resolve("reward-timeout", spec.reward_timeout, 15.0),
        "reward_range": spec.reward_range,
    }
    workflow = DEFAULT_WORKFLOW if spec.workflow is None else spec.workflow
    names = accepted(import_from_string(workflow) if isinstance(workflow, str) else workflow, known)
    ours = {name: value for name, value in known.items() if name in names and value is not None}
    return resolve_workflow(workflow, {**ours, **kwargs}, agents=AgentOptions(**settings.get("agents", {})))


def accepted(workflow: Any, known: Collection[str]) -> set[str]:
    """Those of our settings that a workflow's constructor has parameters for; so AReaL's classes need no kwargs.

    Constructors of ours get them all, those with ``**options`` too.
    """
    try:
        parameters = inspect.signature(workflow).parameters if inspect.isclass(workflow) else {}
    except ValueError:  # of a class that is not written in Python
        return set()
    constructor = getattr(workflow, "__init__", None)
    if parameters and str(getattr(constructor, "__module__", "")).startswith(_OUR_WORKFLOWS):
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        return set(known) if takes_all else set(known) & set(parameters)
    return AREALS & set(known) & set(parameters)
