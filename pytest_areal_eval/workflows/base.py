"""From what a user gives as ``workflow=`` to an object with ``arun_episode``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.errors import ArealEvalError, ConfigError

if TYPE_CHECKING:
    from pytest_areal_eval.workflows.agent import AgentOptions

_METHODS = {
    "arun_episode": "async def arun_episode(self, engine, data)",
    "run": "async def run(self, data, **extra_kwargs)",
}
"""What runs an episode: a workflow's method, and an agent's."""


def resolve_workflow(
    workflow: Any, kwargs: Mapping[str, Any] | None = None, *, agents: AgentOptions | None = None
) -> Any:
    """Build the workflow once, so that all episodes share it.

    Args:
        workflow: an object with ``async arun_episode(engine, data)``, a class of such objects, an ``async def``
            function ``(engine, item)``, an agent (an object with ``async run(data, **extra_kwargs)``) or its class, or
            the dotted name of any of these.
        kwargs: the constructor's arguments, for a class.
        agents: how an agent runs; one that comes as an ``AgentWorkflow`` says so itself.

    Raises:
        ConfigError: the name cannot be imported, an argument is wrong, or the thing is no workflow.
    """
    found, named = workflow, describe_workflow(workflow)
    if isinstance(found, str):
        from pytest_areal_eval.rewards.importing import import_from_string

        try:
            found = import_from_string(found)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"workflow={workflow!r}: {error}") from error
    check_workflow(found, named)
    if is_agent(found):
        return _agent(found, dict(kwargs or {}), named, agents)
    if inspect.isclass(found):
        return _construct(found, dict(kwargs or {}), named)
    return FunctionWorkflow(found) if inspect.iscoroutinefunction(found) else found


def check_workflow(found: Any, named: str) -> None:
    """Refuse what is no workflow, as far as it shows before anything is constructed.

    Raises:
        ConfigError: it has no method that runs an episode, or one that is not ``async def``.
    """
    if inspect.iscoroutinefunction(found):
        return
    for name, form in _METHODS.items():
        method = getattr(found, name, None)
        if inspect.iscoroutinefunction(method):
            return
        if callable(method):
            raise ConfigError(f"workflow={named}: its {name!r} is not async", f"Write '{form}'.")
    what = found if inspect.isclass(found) else type(found)
    raise ConfigError(
        f"workflow={named}: {what.__name__} has no {' and no '.join(map(repr, _METHODS.values()))}",
        "Give the dotted name, class or instance of a workflow or an agent, or an async function (engine, item).",
    )


def check_arguments(cls: type, names: Iterable[str], named: str) -> None:
    """Refuse arguments that a workflow's constructor does not take, and ones that it lacks.

    Raises:
        ConfigError: which; the hint shows the constructor's signature.
    """
    try:
        signature = inspect.signature(cls)
    except ValueError:  # of a class that is not written in Python
        return
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise ConfigError(f"workflow={named}: {error}", f"Its signature is {cls.__name__}{signature}.") from None


def describe_workflow(workflow: Any) -> str:
    """A short name for messages and for the run's settings."""
    if isinstance(workflow, str):
        return workflow
    named = workflow if inspect.isclass(workflow) or inspect.isroutine(workflow) else type(workflow)
    return f"{named.__module__}.{named.__qualname__}"


class FunctionWorkflow:
    """An ``async def (engine, item)`` as a workflow."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        """Call the function; what it returns is the reward."""
        return await self.function(engine, data)


def is_agent(thing: Any) -> bool:
    """Whether it has a ``run`` and is no workflow."""
    return callable(getattr(thing, "run", None)) and not hasattr(thing, "arun_episode")


def _agent(found: Any, kwargs: dict[str, Any], named: str, options: AgentOptions | None) -> Any:
    from pytest_areal_eval.workflows.agent import AgentOptions, AgentWorkflow

    if inspect.isclass(found):
        _construct(found, kwargs, named)  # so that wrong arguments are one message, before any episode
    return AgentWorkflow(found, kwargs, **asdict(options or AgentOptions()))


def _construct(cls: type, kwargs: dict[str, Any], named: str) -> Any:
    check_arguments(cls, kwargs, named)
    try:
        return cls(**kwargs)
    except Exception as error:  # whatever the user's constructor raises
        if isinstance(error, ArealEvalError):
            raise
        raise ConfigError(f"workflow={named}: its constructor raised {type(error).__name__}: {error}") from error
