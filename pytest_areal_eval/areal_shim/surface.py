"""AReaL's names that workflows, rewards and agents import, and where this package has them.

Invariant: a name stands here only where what it leads to does what AReaL's does, or does it right.
"""

from __future__ import annotations

from collections.abc import Mapping

_OURS = "pytest_areal_eval"


def _names(home: str, names: str) -> dict[str, str]:
    return {name: f"{_OURS}.{home}:{name}" for name in names.split()}


_REQUESTS = _names("areal_shim.io_struct", "ModelRequest") | _names("api", "ModelResponse")
_ENGINE = _names("api", "InferenceEngine")
_WORKFLOW = _names("api", "RolloutWorkflow") | _names("areal_shim.agents", "AgentWorkflow WorkflowLike")
_REWARD = _names("areal_shim.reward_api", "AsyncRewardWrapper")
_ALLOCATION = _names(
    "allocation",
    "AllocationValidationError InvalidAllocationModeError ModelAllocation ParallelStrategy SchedulingStrategy",
)
_MODES = dict.fromkeys(("AllocationMode", "_AllocationMode"), f"{_OURS}.allocation:AllocationMode")
_DATACLASSES = {name: f"dataclasses:{name}" for name in ("dataclass", "field")}
_CONTEXT = _names("workflows.context", "WorkflowContext get set stat_scope get_aiohttp_session get_httpx_client")
_STATS = _names(
    "stats.stats_tracker",
    """ReduceType DistributedStatsTracker get scalar denominator stat scope disable_scope scope_func_wrapper
    record_timing export export_all""",
)
_TRACER = _names(
    "areal_shim.perf_tracer",
    """Category trace_session session_context trace_session_phase atrace_session_phase trace_perf trace_scope
    atrace_scope instant""",
)
_OPENAI = _names("areal_shim.openai", "ArealOpenAI InteractionWithTokenLogpReward")
_WORKFLOWS = {
    "areal.workflow.rlvr": _names(
        "areal_shim.rlvr", "RLVRWorkflow default_get_input_ids_fn default_data_extract_prompt_fn"
    ),
    "areal.workflow.multi_turn": _names("workflows.multi_turn", "MultiTurnWorkflow"),
    "areal.workflow.vision_rlvr": _names("workflows.vision", "VisionRLVRWorkflow"),
}

SURFACE: Mapping[str, Mapping[str, str]] = {
    "areal": {},
    "areal.api": {**_REQUESTS, **_ENGINE, **_WORKFLOW, **_REWARD, **_ALLOCATION},
    "areal.api.alloc_mode": _ALLOCATION | _MODES,
    "areal.api.cli_args": {
        **_names("api", "GenerationHyperparameters"),
        **_names("schedulers.areal", "SchedulingSpec"),
        **_names("allocation", "SchedulingStrategy"),
        **_DATACLASSES,
    },
    "areal.api.engine_api": _ENGINE,
    "areal.api.io_struct": _REQUESTS,
    "areal.api.reward_api": _REWARD,
    "areal.api.workflow_api": _WORKFLOW,
    "areal.core": {},
    "areal.core.workflow_context": _CONTEXT,
    "areal.dataset": _names("areal_shim.dataset", "get_custom_dataset"),
    "areal.experimental": {},
    "areal.experimental.openai": _OPENAI,
    "areal.experimental.openai.client": _names("areal_shim.openai", "ArealOpenAI"),
    "areal.experimental.openai.types": _names("areal_shim.openai", "InteractionWithTokenLogpReward"),
    "areal.infra": {},
    "areal.infra.openai": _OPENAI,
    "areal.infra.workflow_context": _CONTEXT,
    "areal.workflow_context": _CONTEXT,
    "areal.reward": _names("areal_shim.rewards", "MathVerifyWorker get_math_verify_worker"),
    "areal.reward.gsm8k": _names("areal_shim.rewards", "gsm8k_reward_fn"),
    "areal.reward.clevr_count_70k": _names("areal_shim.rewards", "clevr_count_70k_reward_fn"),
    "areal.reward.geometry3k": _names("areal_shim.rewards", "geometry3k_reward_fn"),
    "areal.utils": {},
    "areal.utils.data": _names("areal_shim.data", "concat_padded_tensors"),
    "areal.utils.dynamic_import": _names("rewards.importing", "import_from_string"),
    "areal.utils.hf_utils": _names(
        "areal_shim.hf_utils",
        "apply_chat_template load_hf_tokenizer load_hf_processor_and_tokenizer tokenizer_stop_token_ids",
    ),
    "areal.utils.image": _names("areal_shim.data", "image2base64"),
    "areal.utils.logging": _names("areal_shim.logging", "getLogger"),
    "areal.utils.perf_tracer": _TRACER,
    "areal.utils.printing": _names("stats.tabulate_stats", "tabulate_stats"),
    "areal.utils.stats_tracker": _STATS,
    "areal.workflow.openai": {},
    "areal.workflow.openai.math_agent": _names("areal_shim.math_agent", "MathAgent MultiTurnMathAgent"),
    "areal.workflow": {name: home for names in _WORKFLOWS.values() for name, home in names.items()},
    **_WORKFLOWS,
}
"""By module: its names, each with the ``module:attribute`` of ours."""
