"""AReaL's names that only training uses: what a file may import, derive from and annotate with.

A workflow often shares its file with the script that trains it.  Invariant: nothing here pretends to train; whoever
calls one of these names is told to install AReaL.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn


def is_module(fullname: str) -> bool:
    """Whether all of that module is for training."""
    return any(fullname == package or fullname.startswith(f"{package}.") for package in _PACKAGES)


def is_name(module: str, name: str) -> bool:
    """Whether that module has that name for training."""
    return name in _NAMES.get(module, ()) or (is_module(module) and not name.startswith("__"))


@cache
def stand_in(module: str, name: str) -> type:
    """A class in the place of AReaL's class or function; calling it, or what derives from it, is an ImportError."""

    def refuse(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        raise ImportError(
            f"{module}.{name} is for training, and AReaL is not installed: what stands in for it can be imported and "
            f"derived from, not called.\nAn evaluation takes its settings from --config; to train, install AReaL.",
            name="areal",
        )

    return type(name, (), {"__module__": module, "__doc__": f"In the place of ``{module}.{name}``.", "__new__": refuse})


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


_TRAINERS = _set("PPOTrainer SFTTrainer RWTrainer DPOTrainer SelfDistillationTrainer")
_INFRA = _set("RolloutController TrainController StalenessManager WorkflowExecutor current_platform")
_STRUCTS = _set("FinetuneSpec LocalInfServerInfo ParamSpec RolloutStat SaveLoadMeta StepInfo WeightUpdateMeta")
_STRATEGIES = _set("AllocationType FSDPParallelStrategy MegatronParallelStrategy")

_NAMES = {
    "areal": _TRAINERS | _INFRA,
    "areal.infra": _INFRA,
    "areal.api": _STRUCTS | _STRATEGIES | _set("Job Scheduler TrainEngine Worker"),
    "areal.api.alloc_mode": _STRATEGIES,
    "areal.api.engine_api": _set("TrainEngine"),
    "areal.api.io_struct": _STRUCTS,
    "areal.api.cli_args": _set("""
        BaseExperimentConfig DPOConfig GRPOConfig PPOConfig RWConfig SFTConfig
        AgentConfig ClusterSpecConfig EvaluatorConfig InferenceEngineConfig LauncherConfig MicroBatchSpec
        NameResolveConfig NormConfig OptimizerConfig PPOActorConfig PPOCriticConfig PerfTracerConfig RecoverConfig
        SGLangConfig SaverConfig SchedulerConfig StatsLoggerConfig TrainDatasetConfig TrainEngineConfig
        ValidDatasetConfig vLLMConfig load_expr_config parse_cli_args
    """),
}
"""By module that has names for evaluation, too: those that it has for training."""

_PACKAGES = _set("""
    areal.api.scheduler_api areal.engine areal.experimental.trainer areal.infra.controller areal.infra.launcher
    areal.infra.platforms areal.infra.scheduler areal.trainer areal.utils.dataloader areal.utils.device
    areal.utils.evaluator areal.utils.recover areal.utils.saver areal.utils.seeding areal.utils.stats_logger
""")
"""Modules of which all is for training, with what is below them."""
