"""Workflows and a reward as somebody writes them for AReaL; nothing here knows of this package."""

import uuid

import torch
from areal import workflow_context
from areal.api import AsyncRewardWrapper, InferenceEngine, ModelRequest, ModelResponse, RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters
from areal.experimental.openai import ArealOpenAI
from areal.reward.gsm8k import gsm8k_reward_fn
from areal.utils import logging, stats_tracker
from areal.utils.dynamic_import import import_from_string
from areal.utils.hf_utils import load_hf_tokenizer
from areal.utils.perf_tracer import atrace_session_phase, session_context, trace_session
from areal.workflow.rlvr import RLVRWorkflow

logger = logging.getLogger("their workflow")


def short_is_better(prompt, completions, prompt_ids, completion_ids, answer, **kwargs):
    """A reward on top of AReaL's."""
    return 0.9 * gsm8k_reward_fn(prompt, completions, prompt_ids, completion_ids, answer) + 0.1 * (
        len(completion_ids) < 200
    )


class TheirWorkflow(RolloutWorkflow):
    """A workflow from scratch, with tensors for a trainer."""

    def __init__(self, reward_fn, gconfig: GenerationHyperparameters, tokenizer, enable_thinking: bool = False):
        self.tokenizer = load_hf_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.gconfig = gconfig.new_with_stop_and_pad_token_ids(self.tokenizer)
        reward_fn = import_from_string(reward_fn) if isinstance(reward_fn, str) else reward_fn
        self.async_reward_fn = AsyncRewardWrapper(reward_fn)
        self.enable_thinking = enable_thinking

    @trace_session("reward")
    async def _reward(self, prompt: str, resp: ModelResponse, data: dict) -> float:
        text = self.tokenizer.decode(resp.output_tokens)
        return await self.async_reward_fn(prompt, text, resp.input_tokens, resp.output_tokens, **data)

    @session_context()
    async def _sample(self, engine: InferenceEngine, req: ModelRequest, prompt: str, data: dict):
        async with atrace_session_phase("generate"):
            with stats_tracker.record_timing("generate"):
                resp = await engine.agenerate(req)
        reward = await self._reward(prompt, resp, data)
        tracker = stats_tracker.get(workflow_context.stat_scope())
        tracker.scalar(reward=reward)
        tracker.denominator(answers=torch.ones(1, dtype=torch.bool))
        tracker.stat("answers", length=torch.tensor([float(resp.output_len)]))
        return resp, reward

    async def arun_episode(self, engine: InferenceEngine, data: dict):
        """Ask once."""
        ids = self.tokenizer.apply_chat_template(
            data["messages"],
            tokenize=True,
            add_generation_prompt=True,
            enable_thinking=self.enable_thinking,
            return_dict=False,
        )
        req = ModelRequest(
            rid=uuid.uuid4().hex, input_ids=ids, gconfig=self.gconfig.new(n_samples=1), tokenizer=self.tokenizer
        )
        resp, reward = await self._sample(engine, req, self.tokenizer.decode(ids), data)
        seq = resp.input_tokens + resp.output_tokens
        res = {
            "input_ids": torch.tensor(seq, dtype=torch.int32),
            "loss_mask": torch.tensor([0] * resp.input_len + [1] * resp.output_len, dtype=torch.int32),
            "versions": torch.tensor([-1] * resp.input_len + resp.output_versions, dtype=torch.int32),
            "attention_mask": torch.ones(len(seq), dtype=torch.bool),
            "rewards": torch.tensor(reward, dtype=torch.float32),
        }
        logger.info("version %d of %s", engine.get_version(), workflow_context.get().task_id)
        return {key: value.unsqueeze(0) for key, value in res.items()}


class Derived(RLVRWorkflow):
    """A workflow on top of AReaL's."""

    async def arun_episode(self, engine, data):
        """As the base."""
        return await super().arun_episode(engine, data)


class WithClient(RolloutWorkflow):
    """A workflow that talks to AReaL's OpenAI client, twice where the first answer is wrong."""

    def __init__(self, reward_fn, gconfig: GenerationHyperparameters, tokenizer):
        self.gconfig = gconfig.new_with_stop_and_pad_token_ids(tokenizer)
        self.tokenizer = tokenizer
        self.async_reward_fn = AsyncRewardWrapper(import_from_string(reward_fn))

    async def arun_episode(self, engine: InferenceEngine, data: dict):
        """Ask, grade, ask again."""
        client = ArealOpenAI(engine=engine, tokenizer=self.tokenizer)
        messages = list(data["messages"])
        for _ in range(2):
            comp = await client.chat.completions.create(
                messages=messages, **self.gconfig.new(n_samples=1).to_openai_args_dict()
            )
            message = comp.choices[0].message
            reward = await self.async_reward_fn("", message.content, None, None, **data)
            client.set_reward(comp.id, reward)
            if reward:
                break
            messages += [message.model_dump(exclude_none=True), {"role": "user", "content": "Look again."}]
        client.apply_reward_discount(turn_discount=0.9)
        return client.export_interactions(style="individual")
