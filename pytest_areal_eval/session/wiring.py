"""A session's controllers, wired to its run: what they finish goes to the journal, what they report to the events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_areal_eval.controller import RolloutController
    from pytest_areal_eval.runs.run import Run
    from pytest_areal_eval.schedulers.base import Scheduler


def make_controller(run: Run, model: str | None, scheduler: Scheduler | None) -> RolloutController:
    """A controller for one checkpoint; not yet initialized."""
    from pytest_areal_eval.backends.assembly import build_controller

    run.open()
    share = run.worker.share if run.worker is not None else None
    made = build_controller(run.evaluations.settings, model, scheduler, on_event=run.events.append, share=share)
    made.on_episode, made.on_answer = run.record, run.record_answer
    return made


def without_engine(run: Run, model: str | None) -> RolloutController | None:
    """The controller of a session that generates nothing with this checkpoint; None where it does.

    It answers from the earlier run, and where nothing is owed it is not even started.
    """
    from pytest_areal_eval.backends.assembly import build_recall

    history = run.evaluations.history
    if history is None or run.evaluations.needs_engine(model):
        return None
    owed = history.purpose == "rescore"
    made = build_recall(run.evaluations.settings, model, history, load_tokenizer=owed)
    made.on_episode, made.on_answer = run.record, run.record_answer
    if owed:
        run.open()
        run.evaluations.launch(made, made.initialize)
    return made


def initializer(run: Run, controller: RolloutController) -> Callable[[], None]:
    """What starts a controller's servers, or attaches it to those that the xdist owner started."""
    from pytest_areal_eval.backends.choice import attach_to

    attached = attach_to(run.evaluations.settings)
    if run.worker is None or attached or not run.answer or not run.answer["endpoints"]:
        return lambda: controller.initialize(server_infos=attached or None)
    whereabouts = run.worker.whereabouts()
    return lambda: controller.initialize(server_infos=whereabouts)


def reloader(run: Run, controller: RolloutController, model: str | None) -> Callable[[], None]:
    """What lets a controller's servers load another checkpoint."""
    from pytest_areal_eval.backends.choice import checkpoint_of

    checkpoint = checkpoint_of(run.evaluations.settings, model or "")
    assert checkpoint is not None
    return lambda: controller.update_weights(checkpoint.path)
