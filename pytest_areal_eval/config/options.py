"""What a configuration says of this package's options, each with where it says so.

Training has no part in it: ``max_head_offpolicyness``, ``reward_scaling`` and ``reward_bias`` change no evaluation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_areal_eval.allocation import AllocationMode, AllocationValidationError, parse_allocation
from pytest_areal_eval.config.schema import Config, Origin
from pytest_areal_eval.errors import ConfigError
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
        "worker_extension_cls",
    }
)
"""Keys of ``sglang`` and ``vllm`` that follow from elsewhere, or serve training: its weight updates, its offloading,
its servers without a tokenizer."""
AREALS = Origin("AReaL's default")


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
    pairs = (*_plain(config), *_server(config, "backend" in decided), *_sampling(config), *_jobs(config))
    return {name: found for name, found in pairs if name not in decided}


def remarks(config: Config, decided: Collection[str] = (), scheduler: str = "local") -> list[str]:
    """What in a configuration is not followed, for one warning."""
    found = [f"unknown keys, ignored: {', '.join(config.unknown)}"] if config.unknown else []
    path, tokenizer = config.actor.path, config.tokenizer_path
    if path and tokenizer and tokenizer != path and "model" not in decided:
        found.append(f"tokenizer_path: {tokenizer} is not used; a checkpoint's own tokenizer is")
    for spec in config.rollout.scheduling_spec[:1]:
        found += [f"rollout.scheduling_spec.{remark}" for remark in unused(spec, scheduler)]
    return found


def _plain(config: Config) -> Iterator[tuple[str, OptionValue]]:
    values = {
        ("seed", "seed"): config.seed,
        ("scheduler", "scheduler.type"): config.scheduler.type,
        ("max-concurrency", "rollout.max_concurrent_rollouts"): config.rollout.max_concurrent_rollouts,
        ("start-timeout", "rollout.setup_timeout"): config.rollout.setup_timeout,
    }
    for (name, key), value in values.items():
        if config.given(key) and value is not None:
            yield name, OptionValue(value, config.origins[key])


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
        yield "model", OptionValue([str(places[key])], config.origins[key])
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


def _jobs(config: Config) -> Iterator[tuple[str, OptionValue]]:
    specs = config.rollout.scheduling_spec[:1]
    places = [key for key in ("cluster.slurm", "rollout.scheduling_spec") if config.given(key)]
    for name, value in options_of(specs[0] if specs else SchedulingSpec(), config.cluster.slurm).items():
        yield name, OptionValue(value, config.origins[places[0 if name.startswith("slurm-") else -1]])
