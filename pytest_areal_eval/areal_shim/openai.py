"""AReaL's OpenAI client for workflows: ``chat.completions.create`` on the episode's engine, and rewards by answer.

Invariant: its calls are the episode's, so they are balanced, retried, limited and recorded as any other; nothing
listens anywhere, since client and engine share the process.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from pytest_areal_eval.proxy import ProxySession
from pytest_areal_eval.proxy.server import answer_here

if TYPE_CHECKING:
    from pytest_areal_eval.controller import EpisodeEngine

_logger = logging.getLogger(__name__)
_STYLES = ("individual", "concat")


@dataclass
class InteractionWithTokenLogpReward:
    """One answer of the model, as a workflow returns it; without tokens, which only training reads.

    Attributes:
        interaction_id: the answer's id.
        reward: None where nobody gave one.
        text: what the model said.
    """

    interaction_id: str
    reward: float | None = None
    text: str = ""


class ArealOpenAI(AsyncOpenAI):
    """OpenAI's client for one episode.

    Args:
        engine: what ``arun_episode`` was called with.
        tokenizer: not looked at: the engine has the checkpoint's.
        tool_call_parser, reasoning_parser, chat_template_type: not looked at: Hermes' and Qwen's tool calls and
            ``<think>`` are found, and the checkpoint's own template is applied.
        engine_max_tokens: most tokens of prompt and answer together; None leaves it to the engine.
        options: of OpenAI's client; where it connects to is not looked at.

    Raises:
        TypeError: ``engine`` is no episode's.
    """

    def __init__(
        self,
        engine: EpisodeEngine,
        tokenizer: Any = None,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
        engine_max_tokens: int | None = None,
        chat_template_type: str = "hf",
        **options: Any,
    ) -> None:
        if not hasattr(engine, "chat_request"):
            raise TypeError(f"ArealOpenAI(engine={engine!r:.80}): give it the engine that arun_episode is called with")
        if engine_max_tokens is not None:
            engine.gconfig = engine.gconfig.new(max_tokens=engine_max_tokens)
        self._session = ProxySession(engine, "http://episode")
        self._rewards: dict[str, float] = {}
        client = DefaultAsyncHttpxClient(transport=_InProcess(self._session), trust_env=False)  # type: ignore[arg-type]
        here = {"api_key": self._session.key, "base_url": "http://episode/v1", "http_client": client, "max_retries": 0}
        super().__init__(**{**options, **here})
        for api in (self.chat.completions, self.responses):  # whose model AReaL's callers need not name
            api.create = partial(api.create, model="default")  # type: ignore[method-assign, assignment]

    def set_reward(self, id: str, reward: float) -> None:  # noqa: A002 - AReaL's name
        """Give an answer its reward.  Raises KeyError where no answer has that id."""
        if id not in self._ids():
            raise KeyError(f"no answer has the id {id!r}; there are {self._ids()}")
        self._rewards[id] = float(reward)

    def set_last_reward(self, reward: float) -> None:
        """Give the last answer its reward.  Raises KeyError where there is none."""
        if not self._ids():
            raise KeyError("the model has not answered yet, so there is nothing to give a reward to")
        self.set_reward(self._ids()[-1], reward)

    def apply_reward_discount(self, turn_discount: float = 1.0) -> dict[str, InteractionWithTokenLogpReward]:
        """Add to each answer's reward the next one's, times ``turn_discount``, from the last answer back."""
        later = 0.0
        for index, answer_id in enumerate(reversed(self._ids())):
            if index == 0 and answer_id not in self._rewards:
                _logger.warning("the last answer has no reward; 0.0 is discounted")
            later = self._rewards[answer_id] = self._rewards.get(answer_id, 0.0) + later * turn_discount
        return self.export_interactions()

    def export_interactions(self, style: str = "individual") -> dict[str, InteractionWithTokenLogpReward]:
        """The answers in their order, by id; what ``arun_episode`` returns: the last one's reward is the episode's.

        Raises:
            ValueError: ``style`` is neither ``individual`` nor ``concat``, which is the same here.
        """
        if style not in _STYLES:
            raise ValueError(f"Invalid export style {style!r}; there are {', '.join(_STYLES)}")
        answers = self._session.answers
        return {a.id: InteractionWithTokenLogpReward(a.id, self._rewards.get(a.id), a.content) for a in answers}

    set_final_reward = set_last_reward
    export_completions = export_interactions

    def get_interaction(self, id: str) -> InteractionWithTokenLogpReward | None:  # noqa: A002 - AReaL's name
        """An answer by its id; None where there is none."""
        return self.export_interactions().get(id)

    def _ids(self) -> list[str]:
        return [answer.id for answer in self._session.answers]


class _InProcess:
    """A transport of httpx's that asks the session."""

    def __init__(self, session: ProxySession) -> None:
        self._session = session

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request."""
        body: Mapping[str, Any] = json.loads(await request.aread())
        status, kind, text = await answer_here(self._session, request.url.path, body)
        library = importlib.import_module(type(request).__module__.partition(".")[0])  # httpx, or its successor
        return library.Response(status, headers={"content-type": kind}, content=text.encode(), request=request)

    async def aclose(self) -> None:
        """Nothing is open."""

    async def __aenter__(self) -> _InProcess:
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Nothing, likewise."""
