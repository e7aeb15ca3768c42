"""What a configuration says of this package's options, each with where it says so.

Training has no part in it: ``max_head_offpolicyness``, ``reward_scaling`` and ``reward_bias`` change no evaluation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_areal_eval.allocation import AllocationMode, AllocationValidationError, parse_allocation
from pytest_areal_eval.config.schema import OWN_MODEL, Config, Origin
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.journal.dumps import dump_folder
from pytest_areal_eval.schedulers.areal import SchedulingSpec, options_of, unused

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "max_new_tokens",
    "min_new_tokens",
    "max_tokens",
    "greedy",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "frequency_penalty",
)
NOT_FOR_SERVERS = frozenset(
    {
        "model",
        "model_path",
        "tokenizer_path",
        "seed",
        "random_seed",
        "skip_tokenizer_init",
        "enable_memory_saver",
        "enable_sleep_mode",
        "enable_return_routed_experts",
        "enable_multithread_load",
        "worker_extension_cls",
    }
)
"""Keys of ``sglang`` and ``vllm`` that follow from elsewhere, or serve training: its weight updates, its offloading,
its servers without a tokenizer."""
AREALS = Origin("AReaL's default")
MODES = {"inline": "process", "subproc": "environment", "online": "process"}
"""How agents run, in AReaL's word and in ours; in both of the first two they run beside each other."""
TOOL_PARSERS = frozenset({"qwen", "qwen25", "qwen3", "qwen3_coder", "hermes"})
REASONING_PARSERS = frozenset({"qwen3", "qwen3-thinking", "deepseek-r1", "deepseek_r1"})


@dataclass(frozen=True)
class OptionValue:
    """An option's value, and where it came from."""

    value: Any
    origin: Origin


def option_values(config: Config, decided: Collection[str] = ()) -> dict[str, OptionValue]:
    """The options that a configuration sets, by their names (``max-concurrency``).

    Args:
        config: the configuration.
        decided: options that somebody else has decided, whose values here need not even be right.

    Raises:
        ConfigError: the backend is none, or beam search is asked for.
    """
    pairs = (
        *_plain(config),
        *_limits(config),
        *_server(config, "backend" in decided),
        *_sampling(config),
        *_agents(config),
        *_evaluation(config),
        *_jobs(config),
        *_dump(config),
    )
    return {name: found for name, found in pairs if name not in decided}


def remarks(config: Config, decided: Collection[str] = (), scheduler: str = "local") -> list[str]:
    """What in a configuration is not followed, for one warning."""
    found = [f"unknown keys, ignored: {', '.join(config.unknown)}"] if config.unknown else []
    found += [*_agent_remarks(config), *_dataset_remarks(config)]
    for spec in config.rollout.scheduling_spec[:1]:
        found += [f"rollout.scheduling_spec.{remark}" for remark in unused(spec, scheduler)]
    return found


def _plain(config: Config) -> Iterator[tuple[str, OptionValue]]:
    values: dict[tuple[str, str], Any] = {
        ("seed", "seed"): config.seed,
        ("seed", "eval_gconfig.seed"): config.eval_gconfig.seed,
        ("scheduler", "scheduler.type"): config.scheduler.type,
        ("max-concurrency", "rollout.max_concurrent_rollouts"): config.rollout.max_concurrent_rollouts,
        ("start-timeout", "rollout.setup_timeout"): config.rollout.setup_timeout,
    }
    for (name, key), value in values.items():
        if config.given(key) and value is not None:
            yield name, OptionValue(value, config.origins[key])
    names = [key for key in ("experiment_name", "trial_name") if config.given(key) and getattr(config, key)]
    if names:
        yield "trial", OptionValue("/".join(getattr(config, key) for key in names), config.origins[names[-1]])


def _limits(config: Config) -> Iterator[tuple[str, OptionValue]]:
    """AReaL's limit of a request is its limit of an item too; its retries are attempts, of which 0 means one."""
    key, limit_s = "rollout.request_timeout", config.rollout.request_timeout
    if config.given(key):
        if not 0 < limit_s < float("inf"):
            raise ConfigError(f"{config.origins[key].place}: {key}: {limit_s:g} is not above 0 seconds")
        for name in ("request-timeout", "episode-timeout"):
            yield name, OptionValue(limit_s, config.origins[key])
    key, attempts = "rollout.request_retries", config.rollout.request_retries
    if config.given(key):
        if attempts < 0:
            raise ConfigError(f"{config.origins[key].place}: {key}: {attempts} is below 0")
        yield "request-attempts", OptionValue(max(attempts, 1), config.origins[key])


def _server(config: Config, is_decided: bool) -> Iterator[tuple[str, OptionValue]]:
    backend = None if is_decided else _backend(config)
    if backend is not None:
        yield "backend", backend
    engine = str(backend.value).partition(":")[0] if backend else ""
    places = {"actor.path": config.actor.path}
    places |= {"vllm.model": config.vllm.get("model")} if engine == "vllm" else {}
    places |= {"sglang.model_path": config.sglang.get("model_path")} if engine == "sglang" else {}
    key = next((key for key, path in places.items() if path), None)
    if key is not None:
        path = str(places[key])
        yield "model", OptionValue([path], config.origins[key])
        if config.tokenizer_path not in ("", path) and config.origins[key] is not OWN_MODEL:
            yield "tokenizer", OptionValue({path: config.tokenizer_path}, config.origins["tokenizer_path"])
    sections: Mapping[str, Mapping[str, Any]] = {"sglang": config.sglang, "vllm": config.vllm}
    for name, section in sections.items():
        args = {k: v for k, v in section.items() if k not in NOT_FOR_SERVERS and v is not None}
        if args:
            yield name, OptionValue(args, config.origins[name])


def _backend(config: Config) -> OptionValue | None:
    """``rollout.backend``, or what generates in the older ``allocation_mode``."""
    if config.rollout.backend:
        origin = config.origins["rollout.backend"]
        parse_allocation(config.rollout.backend, f"{origin.place}: rollout.backend: ")
        return OptionValue(config.rollout.backend, origin)
    if not config.allocation_mode:
        return None
    origin = config.origins["allocation_mode"]
    where = f"{origin.place}: allocation_mode: "
    try:
        mode = AllocationMode.from_str(config.allocation_mode)
        named = {a.name: a for a in mode.allocations if a.is_inference}
        model = named.get("rollout") or mode.gen
    except AllocationValidationError as error:
        raise ConfigError(f"{where}{error.args[0]}", error.hint) from None
    except AttributeError as error:
        raise ConfigError(f"{where}{error}", "Give --backend, or --set +rollout.backend=sglang:d4.") from None
    split = model.parallel
    return OptionValue(f"{model.backend}:d{split.dp_size}p{split.pp_size}t{split.tp_size}", origin)


def _sampling(config: Config) -> Iterator[tuple[str, OptionValue]]:
    generation = config.eval_gconfig
    if config.given("eval_gconfig.use_beam_search") and generation.use_beam_search:
        place = config.origins["eval_gconfig.use_beam_search"].place
        raise ConfigError(f"{place}: use_beam_search: an evaluation samples, or is greedy", "Set it to false.")
    said = [name for name in ("n_samples", *SAMPLING) if config.given(f"eval_gconfig.{name}")]
    for name in said:
        yield name.replace("_", "-"), OptionValue(getattr(generation, name), config.origins[f"eval_gconfig.{name}"])
    if said and "temperature" not in said and "greedy" not in said:
        yield "temperature", OptionValue(generation.temperature, AREALS)


def _agents(config: Config) -> Iterator[tuple[str, OptionValue]]:
    agent, key = config.rollout.agent, "rollout.agent.mode"
    if config.given(key) and agent.mode not in MODES:
        place = config.origins[key].place
        raise ConfigError(f"{place}: {key}: {agent.mode!r} is not inline or subproc")
    values = {
        "mode": (key, MODES.get(agent.mode)),
        "max_tokens": ("rollout.agent.engine_max_tokens", agent.engine_max_tokens),
    }
    if agent.mode == "subproc":
        values["processes"] = ("rollout.agent.subproc_max_workers", agent.subproc_max_workers)
    said = {name: (key, value) for name, (key, value) in values.items() if config.given(key) and value is not None}
    for key, value in said.values():
        if isinstance(value, int) and value < 1:
            raise ConfigError(f"{config.origins[key].place}: {key}: {value} is below 1")
    if said:
        options = {name: value for name, (_, value) in said.items()}
        yield "agents", OptionValue(options, _strongest(config, [key for key, _ in said.values()]))


def _agent_remarks(config: Config) -> Iterator[str]:
    agent = config.rollout.agent
    if agent.mode == "online":
        yield "rollout.agent.mode: online: an evaluation runs its agents itself"
    if agent.tool_call_parser not in TOOL_PARSERS:
        yield f"rollout.agent.tool_call_parser: {agent.tool_call_parser}: only Hermes' and Qwen's calls are read"
    if agent.reasoning_parser not in REASONING_PARSERS:
        yield f"rollout.agent.reasoning_parser: {agent.reasoning_parser}: only <think> is read"
    if agent.chat_template_type == "concat":
        yield "rollout.agent.chat_template_type: concat: each request goes through the chat template as a whole"


def _evaluation(config: Config) -> Iterator[tuple[str, OptionValue]]:
    """What an evaluation is made of where its decorator is silent."""
    data, said = config.valid_dataset, {}
    if data.path:
        folder = Path(data.path).expanduser()  # from the current folder, as AReaL has it
        said["dataset"] = ("valid_dataset.path", str(folder.resolve()) if folder.exists() else data.path)
        if config.given("valid_dataset.split") and not folder.is_file():
            said["split"] = ("valid_dataset.split", data.split)
    agent = "rollout.agent.agent_cls_path"
    workflows = {"eval_workflow": config.eval_workflow, "workflow": config.workflow}
    workflows[agent] = config.rollout.agent.agent_cls_path
    key = next((key for key, value in workflows.items() if isinstance(value, str) and "." in value), None)
    if key is not None:
        said["workflow"] = (key, workflows[key])
    if isinstance(config.reward_fn_path, str) and "." in config.reward_fn_path:
        said["reward_fn"] = ("reward_fn_path", config.reward_fn_path)
    if said:
        options = {name: value for name, (_, value) in said.items()}
        yield "evaluation", OptionValue(options, _strongest(config, [key for key, _ in said.values()]))


def _dataset_remarks(config: Config) -> Iterator[str]:
    data = config.valid_dataset
    if data.type not in (None, "rl"):
        yield f"valid_dataset.type: {data.type}: an evaluation reads questions and answers"
    if data.max_length is not None:
        yield "valid_dataset.max_length: no record is dropped; a prompt that is too long has a status of its own"
    if data.dataset_kwargs:
        yield f"valid_dataset.dataset_kwargs: {', '.join(data.dataset_kwargs)}: arguments of AReaL's own loaders"


def _strongest(config: Config, keys: Collection[str]) -> Origin:
    """Where several values came from: an override where one is among them, else the first one's place."""
    origins = [config.origins[key] for key in keys]
    return next((origin for origin in origins if origin.typed), origins[0])


def _dump(config: Config) -> Iterator[tuple[str, OptionValue]]:
    """The folder that rollouts are written to in AReaL's layout, where the configuration wants that."""
    rollout = config.rollout
    if not rollout.dump_to_file:
        return
    origin = config.origins["rollout.dump_to_file"]
    parts = {
        "cluster.fileroot": rollout.fileroot or config.cluster.fileroot,
        "experiment_name": rollout.experiment_name or config.experiment_name,
        "trial_name": rollout.trial_name or config.trial_name,
    }
    missing = next((key for key, value in parts.items() if not value), None)
    if missing is not None:
        raise ConfigError(f"{origin.place}: rollout.dump_to_file: {missing} says not where", f"Set {missing}.")
    yield "dump", OptionValue(str(dump_folder(*(str(value) for value in parts.values()))), origin)


def _jobs(config: Config) -> Iterator[tuple[str, OptionValue]]:
    specs = config.rollout.scheduling_spec[:1]
    places = [key for key in ("cluster.slurm", "rollout.scheduling_spec") if config.given(key)]
    for name, value in options_of(specs[0] if specs else SchedulingSpec(), config.cluster.slurm).items():
        yield name, OptionValue(value, config.origins[places[0 if name.startswith("slurm-") else -1]])
