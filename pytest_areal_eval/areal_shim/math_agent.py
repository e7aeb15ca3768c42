"""AReaL's ``areal.workflow.openai.math_agent``: a question to OpenAI's client once, or until the answer is right."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from pytest_areal_eval.rewards import math_reward_fn
from pytest_areal_eval.rewards.wrapper import AsyncRewardWrapper

_NOT_OF_A_CALL = ("max_tokens", "max_turns", "reward_max_workers")
_AGAIN = "That is wrong, or no answer could be found in it. Read the question again, and answer once more."


class MultiTurnMathAgent:
    """Asks until the answer is right.

    Args:
        max_turns: how often at most.
        kwargs: arguments of the chat call; AReaL's ``max_tokens``, which is prompt and answer together, is none.
    """

    def __init__(self, max_turns: int = 8, **kwargs: Any) -> None:
        self._max_turns = max_turns
        self._options = {name: value for name, value in kwargs.items() if name not in _NOT_OF_A_CALL}

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> dict[str, float]:
        """Answer ``data["messages"]``; a reward for each answer, against ``data["answer"]``."""
        given: dict[str, Any] = {name: extra_kwargs.get(name) for name in ("base_url", "api_key", "http_client")}
        client = AsyncOpenAI(**given, max_retries=0)
        grade = AsyncRewardWrapper(math_reward_fn)
        messages, rewards = list(data["messages"]), {}
        for _ in range(self._max_turns):
            reply = await client.chat.completions.create(model="default", messages=messages, **self._options)
            said = reply.choices[0].message
            rewards[reply.id] = float(await grade("", said.content or "", [], [], answer=data["answer"]))
            if rewards[reply.id] == 1:
                break
            messages += [said.model_dump(exclude_none=True), {"role": "user", "content": _AGAIN}]
        return rewards


class MathAgent(MultiTurnMathAgent):
    """Asks once."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "max_turns": 1})
