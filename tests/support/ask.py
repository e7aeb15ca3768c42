"""The lightest workflow: ask the record's question once and compare; no grader process is started."""

from __future__ import annotations

from typing import Any

from pytest_areal_eval import ModelRequest, RolloutWorkflow


class Ask(RolloutWorkflow):
    """Reward 1.0 where the answer is the record's."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        """Ask and compare."""
        reply = await engine.agenerate(ModelRequest(messages=[{"role": "user", "content": data["question"]}]))
        return float(reply.text == data["answer"])


class Chat(RolloutWorkflow):
    """The same as a conversation, which the checkpoint's template renders."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        """Ask and compare."""
        reply = await engine.chat([{"role": "user", "content": data["question"]}])
        return float(reply.text == data["answer"])
