"""The engine of a session that has none: every answer comes from an earlier run's journal, or the episode fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, Launch
from pytest_areal_eval.errors import RequestError

if TYPE_CHECKING:
    import aiohttp


class RecallEngine:
    """An :class:`~pytest_areal_eval.engines.base.Engine` that has no answers of its own.

    Args:
        run: name of the earlier run.
        token_ids: whether its answers are token ids.
    """

    name = "recall"
    replicas = 1

    def __init__(self, run: str, *, token_ids: bool) -> None:
        self.run = run
        self.info = EngineInfo(concurrency=64, model=run, token_ids=token_ids, schemas=True)  # if they were answered

    def launch(self, name: str, token: str) -> Launch | None:
        """Nothing is started."""
        return None

    async def discover(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> EngineInfo:
        """Nothing to ask."""
        return self.info

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """Refuse: the run was asked something else.

        Raises:
            RequestError: always.
        """
        raise RequestError(
            f"{self.run} holds no answer to this request: the prompt or the sampling is not what it was",
            hint="Change it back, or generate anew: start a run without --rescore.",
        )

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """Nothing is under way."""
