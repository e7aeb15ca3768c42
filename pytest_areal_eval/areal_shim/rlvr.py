"""AReaL's RLVR workflow, for those who derive from it: its attributes, its hooks and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_areal_eval.api import (
    REWARD_ARGUMENTS,
    GenerationHyperparameters,
    InferenceEngine,
    ModelRequest,
    ModelResponse,
)
from pytest_areal_eval.areal_shim.hf_utils import apply_chat_template
from pytest_areal_eval.areal_shim.rewards import Reward
from pytest_areal_eval.workflows import rlvr


def default_get_input_ids_fn(data: Any, tokenizer: Any, enable_thinking: bool) -> list[int]:
    """The conversation's ids by the chat template."""
    ids: list[int] = apply_chat_template(tokenizer, data, add_generation_prompt=True, enable_thinking=enable_thinking)
    return ids


def default_data_extract_prompt_fn(data: Mapping[str, Any]) -> Any:
    """The record's conversation."""
    return data["messages"]


class RLVRWorkflow(rlvr.RLVRWorkflow):
    """As :class:`pytest_areal_eval.workflows.RLVRWorkflow`; thinking is off, and a reward of any size, unless one says.

    A class that derives from it finds AReaL's attributes and may override AReaL's ``_collect_samples`` and
    ``_compute_rewards``; its ``super().arun_episode`` returns AReaL's dict of tensors, one row each.

    Args:
        reward_fn, gconfig, tokenizer: as there.
        enable_thinking: passed to the chat template.
        get_input_ids_fn, data_extract_prompt_fn: as there.
        options: further arguments of that class.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: GenerationHyperparameters,
        tokenizer: Any,
        enable_thinking: bool = False,
        get_input_ids_fn: Callable[..., Any] | str = default_get_input_ids_fn,
        data_extract_prompt_fn: Callable[..., Any] | str = default_data_extract_prompt_fn,
        **options: Any,
    ) -> None:
        options.setdefault("reward_range", None)
        own_ids = None if get_input_ids_fn is default_get_input_ids_fn else get_input_ids_fn
        super().__init__(reward_fn, gconfig, tokenizer, enable_thinking, own_ids, data_extract_prompt_fn, **options)
        self.enable_thinking = enable_thinking
        self.get_input_ids_fn = self._get_input_ids or default_get_input_ids_fn
        self.data_extract_prompt_fn = self._extract_prompt
        self.async_reward_fn = self._grader

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Any:
        """Ask, decode, grade."""
        if type(self) is RLVRWorkflow:  # nobody is there to read tensors
            return await super().arun_episode(engine, data)
        req = self.build_request(data)
        req.metadata["logprobs"] = True
        shown = req.prompt_text if req.messages is None else req.messages[-1].get("content")
        return _tensors(*await self._collect_samples(engine, req, str(shown or ""), data))

    async def _collect_samples(
        self, engine: InferenceEngine, req: ModelRequest, prompt_str: str, task_data: dict[str, Any]
    ) -> tuple[ModelResponse, float]:
        resp = await engine.agenerate(req)
        return resp, await self._compute_rewards(resp, prompt_str, task_data)

    async def _compute_rewards(self, resp: ModelResponse, prompt_str: str, task_data: dict[str, Any]) -> float:
        is_cut = resp.stop_string is not None and resp.text is not None  # the tokens may run past the stop string
        text = resp.text if is_cut or self.tokenizer is None else self.tokenizer.decode(resp.output_tokens)
        columns = {name: value for name, value in task_data.items() if name not in REWARD_ARGUMENTS}
        score = await self._grader.score(prompt_str, text or "", resp.input_tokens, resp.output_tokens, **columns)
        return Reward.of(score)


def _tensors(resp: ModelResponse, reward: float) -> dict[str, Any]:
    """A sample as AReaL's trainer reads it, [1, length] each; and, for the journal, what was compared."""
    import torch

    asked, said = len(resp.input_tokens), len(resp.output_tokens)
    rows = {
        "input_ids": torch.tensor([*resp.input_tokens, *resp.output_tokens], dtype=torch.int32),
        "loss_mask": torch.tensor([0] * asked + [1] * said, dtype=torch.int32),
        "logprobs": torch.tensor([0.0] * asked + resp.output_logprobs, dtype=torch.float32),
        "versions": torch.tensor([-1] * asked + [0] * said, dtype=torch.int32),
        "attention_mask": torch.ones(asked + said, dtype=torch.bool),
        "rewards": torch.tensor(float(reward), dtype=torch.float32),
    }
    compared = {name: getattr(reward, name, None) for name in ("extracted", "gold")}
    return {name: row.unsqueeze(0) for name, row in rows.items()} | {k: v for k, v in compared.items() if v is not None}
