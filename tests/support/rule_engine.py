"""An engine without a server: answers by a rule after a latency, and counts what is in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, Launch

Rule = Callable[[str, int], str]
"""(last user message, number of the request) → answer; may raise."""


class RuleEngine:
    """Implements ``Engine``; messages in, text out."""

    name = "rule"
    replicas = 1

    def __init__(self, rule: Rule, *, latency_s: float | Callable[[str], float] = 0.0, concurrency: int = 64) -> None:
        self.info = EngineInfo(context_length=None, concurrency=concurrency, model="rule")
        self.rule = rule
        self.latency_s = latency_s
        self.requests = 0
        self.in_flight = 0
        self.peak = 0
        self.cancelled = 0

    def launch(self, name: str, token: str) -> Launch | None:
        return None

    async def discover(self, endpoint: Endpoint, http: Any) -> EngineInfo:
        return self.info

    async def generate(self, request: ModelRequest, endpoint: Endpoint | None, http: Any) -> ModelResponse:
        question = str((request.messages or [{"content": ""}])[-1]["content"])
        number, self.requests = self.requests, self.requests + 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            latency = self.latency_s(question) if callable(self.latency_s) else self.latency_s
            await asyncio.sleep(latency)
            text = self.rule(question, number)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        return ModelResponse(text=text, input_count=len(question.split()), output_count=len(text.split()) + 1)

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: Any) -> None:
        return None
