"""Multi-turn: after a wrong answer the model is told so and may try again, for a discounted reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_areal_eval.api import (
    GenerationHyperparameters,
    InferenceEngine,
    ModelRequest,
    ModelResponse,
    RolloutWorkflow,
)
from pytest_areal_eval.errors import PromptTooLong
from pytest_areal_eval.workflows.prompts import rendering
from pytest_areal_eval.workflows.rlvr import RLVRWorkflow

RETRY = (
    "That is not the right answer, or it could not be read. Read the original question again, look for mistakes, "
    "and answer once more."
)
_MARK = "the answer before"


class MultiTurnWorkflow(RolloutWorkflow):
    """Ask until the reward is not 0, at most ``max_turns`` times.  Constructor and discount are AReaL's.

    The reward is the last turn's times ``turn_discount ** (turns - 1)``; ``num_turns`` is a metric.  The conversation's
    own tokens are kept as they were generated; only what stands between two turns is tokenized anew.  Where the next
    prompt would not fit the context any more, the last turn's reward holds.

    Args:
        reward_fn: as :class:`RLVRWorkflow`'s; a callable or its dotted name.
        gconfig: how to sample each turn.
        tokenizer: a tokenizer object or a checkpoint's path; None sends messages and lets the server tokenize.
        max_turns: at least 1.
        turn_discount: above 0, at most 1.
        retry_prompt: what the model is told.
        options: further arguments of :class:`RLVRWorkflow`: ``enable_thinking``, ``template_kwargs``, limits.

    Raises:
        ValueError: ``max_turns`` or ``turn_discount`` is out of range.
    """

    grades_in_pool = True

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: GenerationHyperparameters | Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        max_turns: int = 2,
        turn_discount: float = 1.0,
        enable_thinking: bool | None = None,
        retry_prompt: str = RETRY,
        **options: Any,
    ) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be positive, got {max_turns}")
        if not 0 < turn_discount <= 1:
            raise ValueError(f"turn_discount must be in (0, 1], got {turn_discount}")
        self.max_turns = max_turns
        self.turn_discount = turn_discount
        self.retry_prompt = retry_prompt
        self._turn = RLVRWorkflow(reward_fn, gconfig, tokenizer, enable_thinking, **options)
        self._between = self._tokens_between() if self._turn.tokenizer is not None else []

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Any:
        """Ask, grade, ask again.  Returns a :class:`~pytest_areal_eval.api.Score`."""
        request = self._turn.build_request(data)
        response = await engine.agenerate(request)
        turns, score = 1, await self._turn.grade(request, response, data)
        while score.value == 0.0 and turns < self.max_turns:
            request = self._next(request, response)
            try:
                response = await engine.agenerate(request)
            except PromptTooLong:
                break
            turns, score = turns + 1, await self._turn.grade(request, response, data)
        value = score.value * self.turn_discount ** (turns - 1)
        return replace(score, value=value, metrics={**score.metrics, "num_turns": float(turns)})

    def _next(self, request: ModelRequest, response: ModelResponse) -> ModelRequest:
        if self._turn.tokenizer is None:
            said = [
                {"role": "assistant", "content": response.text or ""},
                {"role": "user", "content": self.retry_prompt},
            ]
            return ModelRequest(
                messages=[*(request.messages or ()), *said],
                gconfig=request.gconfig,
                template_kwargs=request.template_kwargs,
            )
        said_ids, between = list(response.output_tokens), self._between
        if said_ids and between and said_ids[-1] == between[0]:
            between = between[1:]  # the model ended its turn itself
        ids = [*request.input_ids, *said_ids, *between]
        return ModelRequest(input_ids=ids, gconfig=request.gconfig, tokenizer=self._turn.tokenizer)

    def _tokens_between(self) -> list[int]:
        """From the end of an assistant's content to the beginning of its next turn, as the chat template has it."""
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _MARK},
            {"role": "user", "content": self.retry_prompt},
        ]
        tokenizer = self._turn.tokenizer
        with rendering():
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self._turn.template_kwargs
            )
        return list(tokenizer.encode(text.rpartition(_MARK)[2], add_special_tokens=False))
