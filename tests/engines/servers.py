"""How the engines' tests run servers: attached stand-ins, and environments that hold a stand-in under a real name."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from standin.server import Running
from standin.tokens import ByteTokenizer
from support.waiting import until

from pytest_areal_eval.allocation import Allocation
from pytest_areal_eval.api import GenerationHyperparameters, Rollout
from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController
from pytest_areal_eval.engines.base import Endpoint, Engine
from pytest_areal_eval.engines.server import ServerSpec

TESTS = Path(__file__).parents[1]
MODEL = TESTS.parent / "models/tiny-math"
STANDIN = TESTS / "standin/engines.py"
MODULES = {"vllm": "vllm/entrypoints/openai/api_server.py", "sglang": "sglang/launch_server.py"}


def spec(backend: str, **changes: Any) -> ServerSpec:
    """One replica of the shipped checkpoint."""
    return ServerSpec(**{"model": str(MODEL), "served_name": "tiny-math", "allocation": Allocation(backend), **changes})


def environment(folder: Path, name: str, version: str) -> str:
    """An interpreter in whose environment ``name`` is installed: its module runs the stand-in."""
    site = folder / "site"
    module = site / MODULES[name]
    module.parent.mkdir(parents=True)
    for package in (*module.parents,):
        if package.is_relative_to(site) and package != site:
            (package / "__init__.py").touch()
    module.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(TESTS)!r})\n"
        "if __name__ == '__main__':\n"
        "    from standin.engines import main\n"
        f"    main({name!r}, sys.argv[1:])\n"
    )
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return executable(folder / "python", f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')


def executable(path: Path, script: str) -> str:
    """A program that a test writes."""
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@contextmanager
def attached(
    engine: Engine,
    *servers: Running,
    key: str = "",
    messages: bool = False,
    tokenizer: Any = None,
    events: list[Event] | None = None,
    **settings: Any,
) -> Iterator[RolloutController]:
    """A controller on servers that run already; what it tells of them goes into ``events``."""
    chosen = {"max_concurrency": 16, "backoff_s": 0.02, "health_interval_s": 0.1, "episode_timeout_s": 20.0}
    kept: list[Event] = [] if events is None else events
    endpoints = [Endpoint(f"server/{i}", server.url, key) for i, server in enumerate(servers)]
    with RolloutController(
        engine,
        settings=ControllerSettings(**{**chosen, **settings}),
        tokenizer=None if messages else tokenizer or ByteTokenizer(),
        on_event=kept.append,
    ) as controller:
        controller.initialize(server_infos=endpoints)
        until(lambda: controller.snapshot().replicas_ready == len(servers), "all servers")
        yield controller


class Ask:
    """One question; the reward is whether the answer says 42."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        """Ask."""
        reply = await engine.chat([{"role": "user", "content": data["q"]}], max_new_tokens=64)
        return float("42" in reply.text)


def run_rows(
    controller: RolloutController,
    count: int = 12,
    group_size: int = 1,
    gconfig: GenerationHyperparameters | None = None,
) -> Sequence[Rollout]:
    """Ask ``count`` questions."""
    ids = [
        controller.submit({"q": f"Question {i}."}, Ask(), item_id=f"row-{i}", group_size=group_size, gconfig=gconfig)
        for i in range(count)
    ]
    return controller.wait(ids=ids, timeout=60)
