"""An agent that asks the endpoint for agents, without a client of any SDK."""

from __future__ import annotations

import json
from typing import Any

from pytest_areal_eval.proxy.server import answer_here
from pytest_areal_eval.workflows import context


class EndpointAgent:
    """Asks the endpoint; keeps the answers, each a status and a decoded body."""

    def __init__(self, *asks: tuple[str, dict[str, Any]]) -> None:
        self.asks = asks
        self.said: list[tuple[int, Any]] = []

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        """Ask one after the other."""
        async with context.get().agents.proxy.session(engine) as session:
            for path, body in self.asks:
                status, _, text = await answer_here(session, path, body)
                self.said.append((status, json.loads(text)))
        return 1.0
