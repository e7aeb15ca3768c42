"""What an evaluation reads of an AReaL configuration, with AReaL's names and defaults; and the names it passes over.

Units are AReaL's: time-outs in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_areal_eval.api import GenerationHyperparameters
from pytest_areal_eval.schedulers.areal import SchedulingSpec, SlurmSection


@dataclass(frozen=True)
class Actor:
    """The model that was trained: its checkpoint is what is evaluated."""

    path: str | None = None


@dataclass(frozen=True)
class Cluster:
    """Where AReaL keeps its files (for dumps in its layout), the nodes' size, and how jobs are submitted."""

    fileroot: str | None = None
    n_nodes: int = 32
    n_gpus_per_node: int = 8
    slurm: SlurmSection = field(default_factory=SlurmSection)


@dataclass(frozen=True)
class Scheduler:
    """What starts servers: ``local``, ``ray`` or ``slurm``."""

    type: str | None = None


@dataclass(frozen=True)
class Agent:
    """How agent workflows reach the model."""

    agent_cls_path: str | None = None
    mode: str = "inline"
    tool_call_parser: str = "qwen"
    reasoning_parser: str = "qwen3"
    chat_template_type: str = "hf"
    engine_max_tokens: int | None = None
    turn_discount: float = 1.0
    export_style: str = "individual"
    subproc_max_workers: int = 4
    session_timeout_seconds: float = 3600


@dataclass(frozen=True)
class Rollout:
    """The inference side."""

    backend: str | None = None
    experiment_name: str | None = None
    trial_name: str | None = None
    fileroot: str | None = None
    tokenizer_path: str = ""
    max_concurrent_rollouts: int | None = None
    setup_timeout: float = 300.0
    request_timeout: float = 3600.0
    request_retries: int = 3
    dump_to_file: bool = False
    scheduling_spec: list[SchedulingSpec] = field(default_factory=list)
    agent: Agent = field(default_factory=Agent)


@dataclass(frozen=True)
class ValidDataset:
    """The dataset that training validates on."""

    path: str | None = None
    split: str = "test"
    type: str | None = None
    max_length: int | None = None
    dataset_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sections:
    """The whole of it; ``gconfig`` and ``eval_gconfig`` are read apart, since one inherits from the other.

    The last three are not of AReaL's own classes but of its examples' and its users', who may mean anything by them; an
    evaluation reads those that are text.
    """

    experiment_name: str = ""
    trial_name: str = ""
    seed: int = 1
    tokenizer_path: str = ""
    allocation_mode: str = ""
    actor: Actor = field(default_factory=Actor)
    cluster: Cluster = field(default_factory=Cluster)
    scheduler: Scheduler = field(default_factory=Scheduler)
    rollout: Rollout = field(default_factory=Rollout)
    gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    eval_gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    sglang: dict[str, Any] = field(default_factory=dict)
    vllm: dict[str, Any] = field(default_factory=dict)
    valid_dataset: ValidDataset = field(default_factory=ValidDataset)
    workflow: Any = None
    eval_workflow: Any = None
    reward_fn_path: Any = None


@dataclass(frozen=True)
class Origin:
    """Where a value came from.

    Attributes:
        place: ``FILE:LINE``, or the override as it was typed.
        typed: whether an override had a part in it.
        through: the references that led there, such as ``actor.path``.
    """

    place: str
    typed: bool = False
    through: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.place + "".join(f", ${{{key}}}" for key in self.through)


OWN_MODEL = Origin("--model", typed=True)
"""Where ``actor.path`` came from where an option stands in for it."""


@dataclass(frozen=True)
class Config(Sections):
    """What an evaluation reads of a configuration.

    Attributes:
        origins: for each key that was given (``rollout.backend``), where it came from.
        unknown: keys that neither evaluation nor AReaL knows, each with the nearest known one; they are ignored.
    """

    origins: Mapping[str, Origin] = field(default_factory=dict)
    unknown: Sequence[str] = ()

    def given(self, key: str) -> bool:
        """Whether the file or an override says something about a key."""
        return key in self.origins


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_GCONFIG = frozenset({"reward_normalization", "drop_incomplete_group"})
IGNORED: Mapping[str, frozenset[str]] = {
    "": _names(
        """enable_offload total_train_epochs total_train_steps total_train_n_seqs train_dataset saver recover evaluator
        stats_logger perf_tracer memory_profiler ref critic teacher dynamic_bs async_training launcher post_exit_hook
        max_tokens_per_trajectory weight_update_mode"""
    ),
    "cluster": frozenset({"cluster_name", "name_resolve"}),
    "scheduler": _names(
        """endpoint deploy_mode functioncall_service_domain reward_functioncall_config reward_model_path
        reward_model_service_url"""
    ),
    "rollout": _names(
        """queue_size consumer_batch_size max_head_offpolicyness enable_rollout_tracing check_trajectory_format
        pause_grace_period scheduling_strategy use_lora lora_name return_routed_experts _version model
        routing_strategy poll_interval admin_api_key api_url provider_api_key deterministic_sampling
        serialize_group_samples workers_ready_timeout"""
    ),
    "rollout.agent": _names(
        """admin_api_key scheduling_spec set_reward_finish_timeout message_preprocessors prefix_matcher
        drop_retry_orphans"""
    ),
    "rollout.scheduling_spec": _names("task_type cmd ray_placement_strategy"),
    "gconfig": _GCONFIG,
    "eval_gconfig": _GCONFIG,
    "valid_dataset": _names(
        """batch_size shuffle pin_memory num_workers num_dataset_workers drop_last scheduling_spec
        setup_timeout"""
    ),
}
"""AReaL's keys that say nothing about an evaluation, for each section that is read.  Top-level sections in the first
row are passed over whole, and so is the rest of ``actor``."""
