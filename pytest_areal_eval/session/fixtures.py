"""Fixtures: ``scheduler`` and ``controller`` (a conftest may override either), ``engine``, ``item``, ``rollout``.

pytest loads this module in every session, so it imports nothing that only evaluations need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from pytest_areal_eval.api import Rollout
    from pytest_areal_eval.controller import RolloutController
    from pytest_areal_eval.schedulers.base import Scheduler
    from pytest_areal_eval.session.kept import Kept


@pytest.fixture(scope="session")
def scheduler(pytestconfig: pytest.Config) -> Iterator[Scheduler | None]:
    """What starts the servers: the one that --scheduler names; None where there is nothing to start."""
    from pytest_areal_eval.backends.assembly import build_scheduler
    from pytest_areal_eval.plugin import RUN
    from pytest_areal_eval.session.session import SESSION

    if pytestconfig.option.setuponly:
        yield None
        return
    if SESSION not in pytestconfig.stash:
        _refuse("no test of this session is an evaluation")
    run = pytestconfig.stash[RUN]
    # On a worker the controlling process starts the servers, and where nothing is owed nobody does.
    if run.worker is not None or not run.evaluations.needs_engine():
        yield None
        return
    found = build_scheduler(pytestconfig.stash[SESSION].settings, run.log_dir())
    try:
        yield found
    finally:
        if found is not None:
            found.close()


@pytest.fixture(scope="session")
def areal_model(request: pytest.FixtureRequest) -> str | None:
    """The checkpoint under test: each --model in turn."""
    from pytest_areal_eval.session.session import SESSION

    models = request.config.stash[SESSION].settings.get("model", [])
    chosen: str | None = getattr(request, "param", models[0] if models else None)
    return chosen


@pytest.fixture(scope="session")
def areal_kept(pytestconfig: pytest.Config, scheduler: Scheduler | None) -> Iterator[Kept]:
    """What holds the servers between two checkpoints."""
    from pytest_areal_eval.session.kept import Kept
    from pytest_areal_eval.session.session import SESSION

    kept = Kept(pytestconfig.stash[SESSION])
    yield kept
    kept.close()


@pytest.fixture(scope="session")
def controller(
    pytestconfig: pytest.Config, scheduler: Scheduler | None, areal_model: str | None, areal_kept: Kept
) -> Iterator[RolloutController | None]:
    """The RolloutController of the checkpoint under test; its servers come up in the background."""
    from pytest_areal_eval.plugin import RUN
    from pytest_areal_eval.session import wiring
    from pytest_areal_eval.session.session import SESSION

    if pytestconfig.option.setuponly:
        yield None
        return
    session, run = pytestconfig.stash[SESSION], pytestconfig.stash[RUN]
    made = areal_kept.take(areal_model)
    if made is None:
        made = wiring.make_controller(run, areal_model, scheduler)
        session.launch(made, wiring.initializer(run, made))
    else:
        session.launch(made, wiring.reloader(run, made, areal_model))
    run.describe_model(areal_model)
    try:
        yield made
    finally:
        areal_kept.leave(made, areal_model)


@pytest.fixture
def engine(controller: RolloutController) -> RolloutController:
    """What workflows talk to: ``await engine.agenerate(...)``; an async test gets one of its own, with ``chat``."""
    return controller


@pytest.fixture
def item(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The dataset's record."""
    if not hasattr(request, "param"):
        _refuse("this test is none")
    return dict(request.param.record)


@pytest.fixture
def rollout(request: pytest.FixtureRequest, item: dict[str, Any], controller: RolloutController) -> Rollout | None:
    """The item's finished episodes: ``rollout.reward``, ``rollout.text``, ``rollout.episodes``."""
    from pytest_areal_eval.session.outcomes import pick_up

    return pick_up(request.node, controller)


def _refuse(why: str) -> NoReturn:
    pytest.fail(
        f"{why}, and 'scheduler', 'controller', 'engine', 'item' and 'rollout' are fixtures of evaluations\n"
        "Mark the test: @evaluation(dataset, reward_fn=...); or name your own fixture otherwise.",
        pytrace=False,
    )
