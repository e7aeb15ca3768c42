"""Agents with any SDK as workflows: ``async def run(self, data, **extra_kwargs)``, as AReaL has them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pytest_areal_eval.agents import AgentRef
from pytest_areal_eval.agents.process import Job, address, plain, takes_address
from pytest_areal_eval.errors import ArealEvalError, ConfigError, GraderError
from pytest_areal_eval.proxy import ProxySession
from pytest_areal_eval.rewards.importing import refer_to
from pytest_areal_eval.workflows import context

Mode = Literal["process", "inline", "environment"]
MOST_PROCESSES = max(1, min(4, (os.cpu_count() or 1) // 2))
MOST_ALONE = min(64, max(8, 4 * (os.cpu_count() or 1)))
"""Processes of an agent that reads its address from the environment, each with one episode at a time: as many as there
are episodes in flight, up to here.  They wait for the model, so several share a core; each holds 50 to 150 MB."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """How agents run where the evaluation does not say; a configuration's ``rollout.agent``.

    Attributes:
        mode: see :class:`AgentWorkflow`.
        processes: how many there may be; None: this package's own limit.
        max_tokens: prompt and answer of one request together, in tokens; None: the evaluation's.
    """

    mode: Mode = "process"
    processes: int | None = None
    max_tokens: int | None = None


class AgentWorkflow:
    """Runs an agent once an episode, with an endpoint of its own to talk to.

    The agent's ``run`` gets the record and, by keyword, ``base_url`` (without ``/v1``), ``api_key`` and ``http_client``
    (None without the extra ``agents``).  One that takes only the record, or is run in mode ``environment``, finds
    ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, ``ANTHROPIC_BASE_URL`` and ``ANTHROPIC_API_KEY`` in its environment.

    It returns its reward: a number, or ``{id of an answer: reward}``, of which the last answer's counts.

    Args:
        agent: an instance, or a class: then each episode gets an agent of its own.
        kwargs: the constructor's arguments, for a class.
        mode: ``process``: in a process beside the controller's, with others; ``inline``: in the controller's event
            loop, for an agent that cannot be sent to another process; ``environment``: alone in a process that has the
            address in its environment, as AReaL's ``subproc``.
        processes: how many there may be.
        max_tokens: prompt and answer of one request together, in tokens, where that is less than the evaluation's.

    Raises:
        ConfigError: no ``run``, or one that is not ``async def``, or the agent cannot be sent to another process.
    """

    def __init__(
        self,
        agent: Any,
        kwargs: Mapping[str, Any] | None = None,
        *,
        mode: Mode = "process",
        processes: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self._makes = inspect.isclass(agent)
        self._source: Any = partial(agent, **(kwargs or {})) if self._makes else agent
        self._name = f"{(agent if self._makes else type(agent)).__module__}.{_qualname(agent)}"
        run = _checked_run(agent, self._name)
        alone = mode == "environment" or not takes_address(run)
        if alone and mode == "inline":
            raise ConfigError(f"agent {self._name}: run(self, data) takes no base_url", "Use mode='process' for it.")
        self._most = processes or (MOST_ALONE if alone else MOST_PROCESSES)
        self._max_tokens = max_tokens
        self._ref = None if mode == "inline" else self._reference(takes_address=not alone)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        """Run the agent.  Raises what it raised, or why its last request got no answer."""
        agents = context.get().agents
        if agents is None:
            raise ArealEvalError("an agent needs a RolloutController: submit() it there")
        if self._max_tokens is not None:  # the engine is this episode's own
            engine.gconfig = engine.gconfig.new(max_tokens=min(engine.gconfig.max_tokens, self._max_tokens))
        async with agents.proxy.session(engine) as session:
            try:
                value = await self._run(agents, session, data, engine.waiting())
            except Exception as error:
                if isinstance(session.fault, ArealEvalError):  # the cause; the agent saw its HTTP status
                    raise session.fault from error
                raise
            return self._reward(value, session)

    async def _run(
        self, agents: Any, session: ProxySession, data: dict[str, Any], waiting: AbstractContextManager[None]
    ) -> Any:
        episode = context.get()
        if self._ref is None:
            run = self._source().run if self._makes else self._source.run
            async with agents.clients.client() as http_client:
                return plain(await run(data, **address(run, session.base_url, session.key, http_client)))
        job = Job(
            data=data,
            base_url=session.base_url,
            api_key=session.key,
            item_id=episode.item_id,
            evaluation=episode.evaluation,
            episode_index=episode.episode_index,
            group_size=episode.group_size,
            task_id=episode.task_id,
            seed=episode.seed,
        )
        return await agents.hosts(self._ref, self._most).run(job, waiting)

    def _reward(self, value: Any, session: ProxySession) -> Any:
        if not session.answers:
            raise ArealEvalError(
                f"agent {self._name} ended without a single answer of the model, so there is nothing to score",
                "Have it send its requests to base_url with api_key.",
            )
        if not isinstance(value, Mapping) or {"reward", "rewards", "score"} & set(value):
            return value
        ids = [answer.id for answer in session.answers]
        unknown = [key for key in value if key not in ids]
        if unknown or not value:
            said = f"{unknown[0]!r} is the id of none" if unknown else "it is empty"
            raise GraderError(f"agent {self._name}: its rewards by answer: {said}; the answers are {', '.join(ids)}")
        return value[max(value, key=ids.index)]

    def _reference(self, *, takes_address: bool) -> AgentRef:
        try:
            function = refer_to(self._source if self._makes else self._source.run)
        except TypeError as error:
            hint = "Give its class, or AgentWorkflow(agent, mode='inline')."
            raise ConfigError(f"agent {self._name}: {error}", hint) from error
        return AgentRef(self._name, function, self._makes, takes_address)


def _checked_run(agent: Any, name: str) -> Any:
    run = getattr(agent, "run", None)
    if not inspect.iscoroutinefunction(run):
        what = "has no 'run'" if run is None else "its 'run' is not async"
        raise ConfigError(f"agent {name}: {what}", "Write 'async def run(self, data, **extra_kwargs)'.")
    return run


def _qualname(agent: Any) -> str:
    return str((agent if inspect.isclass(agent) else type(agent)).__qualname__)
