"""What surrounds a running episode: AReaL's ``workflow_context``, one per asyncio task, never a global."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from pytest_areal_eval.errors import ArealEvalError


@dataclass(frozen=True)
class WorkflowContext:
    """The episode that runs now.

    Attributes:
        is_eval: always True here; AReaL's workflows read it.
        task_id: what ``submit`` returned.
        evaluation: the evaluation's name; empty for a plain script.
        item_id: the item's id.
        episode_index: which of the item's episodes this is.
        group_size: how many episodes the item has.
        seed: the request seed derived from (run seed, item id, episode index).
        reward_pool: the killable pool that grades; None outside a controller.
        agents: the endpoint that agents talk to, the processes that they run in and HTTP clients; None where no episode
            runs, the clients alone in an agent's process.
        prompts: what is rendered once for all episodes of an item; None outside a controller.
        place: its place among the episodes in flight, given up while it is graded.
    """

    is_eval: bool = True
    task_id: int | None = None
    evaluation: str = ""
    item_id: str = ""
    episode_index: int = 0
    group_size: int = 1
    seed: int | None = None
    reward_pool: Any = None
    agents: Any = None
    prompts: Any = None
    place: Any = None

    @cached_property
    def rng(self) -> Random | None:
        """A random generator of the episode's own, seeded with its seed; use this one, not the global generator."""
        return None if self.seed is None else Random(self.seed)


_current: ContextVar[WorkflowContext | None] = ContextVar("areal_eval_episode", default=None)


def get() -> WorkflowContext:
    """The running episode's context; an empty one outside an episode."""
    return _current.get() or WorkflowContext()


def set(context: WorkflowContext) -> None:  # noqa: A001 - AReaL's name
    """Make ``context`` the running task's."""
    _current.set(context)


async def get_aiohttp_session() -> Any:
    """An ``aiohttp.ClientSession`` for the workflow's own requests; all episodes share it, and the run closes it."""
    return await _clients().session()


async def get_httpx_client() -> Any:
    """An ``httpx.AsyncClient`` likewise, on aiohttp's connections.

    Raises:
        ArealEvalError: ``httpx-aiohttp`` is not installed, or no episode runs.
    """
    client = await _clients().shared()
    if client is None:
        raise ArealEvalError(
            "workflow_context.get_httpx_client() needs httpx-aiohttp, which is not installed",
            "pip install 'pytest-areal-eval[agents]'",
        )
    return client


def _clients() -> Any:
    agents = get().agents
    if agents is None:
        raise ArealEvalError("workflow_context has HTTP clients for running episodes, and none runs here")
    return agents.clients


def stat_scope() -> str:
    """Scope that statistics are recorded under, as AReaL names it."""
    return "eval-rollout" if get().is_eval else "rollout"
