"""RLVR: one question, one answer, one verifiable reward.

The prompt is tokenized exactly once, by ``apply_chat_template``; what the model saw is what the journal keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_areal_eval.api import (
    REWARD_ARGUMENTS,
    GenerationHyperparameters,
    InferenceEngine,
    ModelRequest,
    ModelResponse,
    RolloutWorkflow,
    Score,
)
from pytest_areal_eval.rewards.wrapper import AsyncRewardWrapper
from pytest_areal_eval.workflows import context
from pytest_areal_eval.workflows.prompts import Prompts


class RLVRWorkflow(RolloutWorkflow):
    """Ask once, grade the answer.  Constructor and reward signature are AReaL's.

    Args:
        reward_fn: ``(prompt, completions, prompt_ids, completion_ids, **columns)`` → reward; a callable or its dotted
            name.  It runs in the killable pool.
        gconfig: how to sample; ``n_samples`` is the controller's business and ignored here.
        tokenizer: a tokenizer object or a checkpoint's path; None sends messages and lets the server tokenize.
        enable_thinking: passed to the chat template when given.
        get_input_ids_fn: ``(messages_or_prompt, tokenizer, enable_thinking)`` → ids, instead of the chat template.
        data_extract_prompt_fn: ``(record)`` → messages or prompt, instead of ``record["messages"]``.
        template_kwargs: further arguments of the chat template.
        reward_timeout_s: limit of one reward call.
        reward_range: lowest and highest legal reward.
    """

    grades_in_pool = True
    """The controller starts the graders with the first submission."""

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: GenerationHyperparameters | Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        enable_thinking: bool | None = None,
        get_input_ids_fn: Callable[..., Any] | str | None = None,
        data_extract_prompt_fn: Callable[..., Any] | str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        reward_timeout_s: float = 15.0,
        reward_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.reward_fn = reward_fn
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        wanted = GenerationHyperparameters.of({} if gconfig is None else gconfig)
        self.gconfig = wanted.new_with_stop_and_pad_token_ids(self.tokenizer) if self.tokenizer else wanted
        self.template_kwargs = dict(template_kwargs or {})
        if enable_thinking is not None:
            self.template_kwargs["enable_thinking"] = enable_thinking
        self._get_input_ids = _resolve(get_input_ids_fn)
        self._extract_prompt = _resolve(data_extract_prompt_fn)
        self._grader = AsyncRewardWrapper(reward_fn, reward_timeout_s, reward_range=reward_range)

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Any:
        """Ask, decode, grade.  Returns a :class:`~pytest_areal_eval.api.Score`."""
        request = self.build_request(data)
        response = await engine.agenerate(request)
        return await self.grade(request, response, data)

    async def grade(
        self, request: ModelRequest, response: ModelResponse, data: Mapping[str, Any], *, by_name: bool = False
    ) -> Score:
        """The reward of an answer, from the killable pool; its first four arguments by place, or by name."""
        first = (*self._texts(request, response), request.input_ids, response.output_tokens)
        columns = {key: value for key, value in data.items() if key not in REWARD_ARGUMENTS}
        if by_name:
            return await self._grader.score(**dict(zip(REWARD_ARGUMENTS, first, strict=True)), **columns)
        return await self._grader.score(*first, **columns)

    def build_request(self, data: Mapping[str, Any]) -> ModelRequest:
        """The record's request: ids by the chat template, or messages where there is no tokenizer."""
        source = self._extract_prompt(data) if self._extract_prompt else data["messages"]
        gconfig = self.gconfig.new(n_samples=1)
        if self.tokenizer is None:
            messages = [{"role": "user", "content": source}] if isinstance(source, str) else list(source)
            return ModelRequest(messages=messages, gconfig=gconfig, template_kwargs=dict(self.template_kwargs))
        prompts = _prompts()
        if self._get_input_ids:
            thinking = self.template_kwargs.get("enable_thinking", False)
            ids = list(self._get_input_ids(source, self.tokenizer, thinking))
        else:
            ids = prompts.ids(self.tokenizer, source, self.template_kwargs)
        text = prompts.text(self.tokenizer, ids)
        return ModelRequest(input_ids=ids, gconfig=gconfig, tokenizer=self.tokenizer, prompt_text=text)

    def _texts(self, request: ModelRequest, response: ModelResponse) -> tuple[str, str]:
        if self.tokenizer is None or request.messages is not None:
            shown = request.prompt_text or (request.messages or [{}])[-1].get("content", "")
            return str(shown), response.text or ""
        request.prompt_text = request.prompt_text or self.tokenizer.decode(request.input_ids)
        completion = self.tokenizer.decode(response.output_tokens)
        if response.stop_string is not None and response.text is not None:
            completion = response.text  # the tokens may run past the stop string; the answer may not
        return request.prompt_text or "", completion


def _prompts() -> Prompts:
    """The run's; outside of one, nothing is kept."""
    kept: Prompts | None = context.get().prompts
    return kept or Prompts()


def load_tokenizer(path: str) -> Any:
    """The checkpoint's tokenizer through ``transformers``; pad falls back to eos, as AReaL does."""
    from pytest_areal_eval.checkpoint import load_tokenizer as load

    return load(path)


def _resolve(function: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    if not isinstance(function, str):
        return function
    from pytest_areal_eval.rewards.importing import import_from_string

    found: Callable[..., Any] = import_from_string(function)
    return found
