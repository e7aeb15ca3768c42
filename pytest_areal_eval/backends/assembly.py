"""From the options to a controller: the engine of ``--backend`` on the scheduler of ``--scheduler``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.backends.checks import check_engine
from pytest_areal_eval.backends.choice import build_engine, tokenizer_loader
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.settings import Settings

if TYPE_CHECKING:
    from pytest_areal_eval.controller import RolloutController
    from pytest_areal_eval.controller.settings import Needs
    from pytest_areal_eval.engines.base import Engine
    from pytest_areal_eval.runs.history import History
    from pytest_areal_eval.schedulers.base import Scheduler
    from pytest_areal_eval.schedulers.slurm import SlurmOptions

_FOR = {
    "slurm-": ("slurm",),
    "shared-dir": ("slurm",),
    "ray-": ("ray",),
    "server-cpus": ("ray", "slurm"),
    "server-mem": ("ray", "slurm"),
}
"""The schedulers that options mean something to, by how these begin; every other option is for all."""


def check_options(settings: Settings) -> None:
    """Find the mistakes that need no engine to be found.

    Raises:
        UserError: no such checkpoint or recorded answers, an engine that is not installed, settings that cannot go
            together.
    """
    replay = settings.get("replay")
    if replay is not None:
        from pytest_areal_eval.engines.replay import check_readable

        check_readable(Path(replay))
        return
    check_engine(settings)
    _server_env(settings)
    if settings.get("scheduler") == "ray":
        check_ray(settings)
    if settings.get("scheduler") == "slurm":
        from pytest_areal_eval.schedulers.slurm.options import check_installed

        check_installed()
        slurm_options(settings).further()


def idle_options(settings: Settings) -> str:
    """What was typed for another scheduler than the one in use, for a person; empty if nothing was."""
    name = settings.get("scheduler", "local")
    others = tuple(option for option, schedulers in _FOR.items() if name not in schedulers)
    idle = [option for option in settings.given if option.startswith(others)]
    return f"--{', --'.join(idle)}: nothing to the {name} scheduler" if idle else ""


def build_scheduler(settings: Settings, log_dir: Path) -> Scheduler | None:
    """The scheduler; None where nothing is to be started (replay, or servers that run already)."""
    if settings.get("replay") is not None or settings.get("base-url"):
        return None
    name = settings.get("scheduler", "local")
    if name == "slurm":
        from pytest_areal_eval.schedulers.slurm import SlurmScheduler

        shared_dir = Path(settings.get("shared-dir") or log_dir)
        return SlurmScheduler(shared_dir=shared_dir, options=slurm_options(settings))
    if name == "ray":
        return _ray_scheduler(settings, log_dir)
    from pytest_areal_eval.schedulers.local import LocalScheduler

    return LocalScheduler(log_dir=log_dir)


def check_ray(settings: Settings) -> None:
    """Find what is wrong with Ray's options without Ray, which takes seconds to import and minutes to give up.

    Raises:
        ConfigError: Ray is not installed, no cluster answers, or the runtime environment cannot be read.
    """
    from pytest_areal_eval.schedulers.ray.address import check, resolve

    check(resolve(_ray_address(settings)))
    _runtime_env(settings)


def _ray_scheduler(settings: Settings, log_dir: Path) -> Scheduler:
    from pytest_areal_eval.schedulers.ray.scheduler import RayScheduler

    return RayScheduler(
        log_dir=log_dir,
        address=_ray_address(settings),
        runtime_env=_runtime_env(settings),
        elastic=bool(settings.get("ray-elastic", False)),
    )


def _ray_address(settings: Settings) -> str | None:
    address: str | None = settings.get("ray-address") or os.environ.get("RAY_ADDRESS")
    return address


def _runtime_env(settings: Settings) -> dict[str, Any] | None:
    from pytest_areal_eval.schedulers.ray.address import read_runtime_env

    text = settings.get("ray-runtime-env")
    return None if text is None else read_runtime_env(text)


def slurm_options(settings: Settings) -> SlurmOptions:
    """The ``--slurm-*`` options."""
    from pytest_areal_eval.schedulers.slurm import SlurmOptions

    names = ("partition", "account", "qos", "time", "constraint", "exclude")
    return SlurmOptions(
        **{name: settings.get(f"slurm-{name}") for name in names},
        sbatch_args=tuple(settings.get("slurm-sbatch-arg", ())),
        setup=tuple(settings.get("slurm-setup", ())),
        srun_args=settings.words("slurm-srun-args"),
        prefix=settings.words("slurm-prefix"),
    )


def build_controller(
    settings: Settings,
    model: str | None,
    scheduler: Scheduler | None,
    *,
    on_event: Callable[[Any], None] | None = None,
    share: Callable[[int | None], int | None] | None = None,
) -> RolloutController:
    """A controller for one checkpoint, or for a replay; not yet initialized.

    Args:
        settings: the options.
        model: the checkpoint.
        scheduler: starts the servers.
        on_event: receives what happens to the servers.
        share: this process's part of the concurrency, where there are several.

    Raises:
        UserError: there is neither ``--model`` nor ``--replay``, or one of them is wrong.
    """
    from pytest_areal_eval.controller import ControllerSettings, RolloutController

    concurrency = settings.get("max-concurrency")
    chosen = ControllerSettings(
        max_concurrency=share(concurrency) if share else concurrency,
        adaptive=bool(settings.get("adaptive-concurrency", False)),
        request_timeout_s=settings.get("request-timeout"),
        max_attempts=settings.get("request-attempts", ControllerSettings.max_attempts),
        reward_timeout_s=settings.get("reward-timeout", 15.0),
        start_timeout_s=settings.get("start-timeout"),
        queue_timeout_s=settings.get("queue-timeout", ControllerSettings.queue_timeout_s),
        needs=_needs(settings),
        seed=settings.get("seed", 0),
    )
    engine, tokenizer = _engine(settings, model, scheduler)
    return RolloutController(engine, scheduler, settings=chosen, tokenizer=tokenizer, on_event=on_event)


def _needs(settings: Settings) -> Needs:
    """What a server needs; the servers of one machine share its CPUs and its memory."""
    from pytest_areal_eval.controller.settings import Needs

    env = _server_env(settings)
    if settings.get("scheduler", "local") == "local":
        return Needs(env=env)
    return Needs(env=env, cpus_per_gpu=settings.get("server-cpus"), mem_gb_per_gpu=settings.get("server-mem"))


def _server_env(settings: Settings) -> dict[str, str]:
    found: dict[str, str] = {}
    for variable in settings.get("server-env", ()):
        name, equals, value = variable.partition("=")
        if not equals and name not in os.environ:
            raise ConfigError(f"--server-env={name}: that environment variable is not set", f"export {name}=…")
        found[name] = value if equals else os.environ[name]
    return found


def build_recall(settings: Settings, model: str | None, history: History, *, load_tokenizer: bool) -> RolloutController:
    """A controller that answers from an earlier run alone; not yet initialized.

    Args:
        settings: the options.
        model: the checkpoint, whose tokenizer reads answers that are token ids.
        history: the earlier run.
        load_tokenizer: whether anything will be read.
    """
    from pytest_areal_eval.controller import ControllerSettings, RolloutController
    from pytest_areal_eval.engines.recall import RecallEngine

    ids = load_tokenizer and history.has_token_ids
    chosen = ControllerSettings(reward_timeout_s=settings.get("reward-timeout", 15.0), seed=settings.get("seed", 0))
    tokenizer = tokenizer_loader(settings, model) if ids and model is not None else None
    engine = RecallEngine(history.path.name, token_ids=ids)
    return RolloutController(engine, settings=chosen, tokenizer=tokenizer)


def _engine(
    settings: Settings, model: str | None, scheduler: Scheduler | None
) -> tuple[Engine, Callable[[], Any] | None]:
    replay = settings.get("replay")
    if replay is not None:
        from pytest_areal_eval.engines.replay import ReplayEngine

        return ReplayEngine(Path(replay)), None
    return build_engine(settings, model, scheduler)
