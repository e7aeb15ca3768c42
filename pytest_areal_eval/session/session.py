"""The session's story: which items are selected, when they are handed to a controller, how their rollouts come back.

Invariant: an item is submitted at most once until its rollout is picked up; a rollout that was picked up and is asked
for again (a rerun) is made anew.  Everything public is called from pytest's main thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.api import GIVEN_UP, Episode, Rollout
from pytest_areal_eval.collection.groups import Group, Grouping, group_of, membership, param_of
from pytest_areal_eval.collection.parametrize import Planner
from pytest_areal_eval.collection.resolution import (
    build_workflow,
    check_honoured,
    check_room,
    reward_range_of,
    samples_of,
    sampling_of,
    template_of,
    time_limit_of,
)
from pytest_areal_eval.errors import ArealEvalError, ConfigError, UserError
from pytest_areal_eval.options.settings import Settings
from pytest_areal_eval.session.inbox import TICK_S, Inbox

if TYPE_CHECKING:
    from pytest_areal_eval.controller import RolloutController
    from pytest_areal_eval.journal import Answer
    from pytest_areal_eval.runs.history import History


SESSION = pytest.StashKey["EvaluationSession"]()


class EvaluationSession:
    """All that the plugin knows of a session.  One lives in ``config.stash[SESSION]``."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.planner = Planner(settings, config.invocation_params.dir)
        self.groups: dict[str, Group] = {}
        self.on_episode: Callable[[Episode], None] | None = None
        self.on_answer: Callable[[Answer, bool], None] | None = None
        self.on_recalled: Callable[[Episode], None] = lambda episode: None
        self.on_rollout: Callable[[Rollout], object] = lambda rollout: None
        self.history: History | None = None
        self.open_run: Callable[[], object] = lambda: None
        self.describe_model: Callable[[str | None], None] = lambda model: None
        self.runs_here: Callable[[pytest.Item], bool] = lambda item: True
        self.controllers: list[RolloutController] = []
        self.engine_error: ArealEvalError | None = None
        self.notes: list[str] = []
        self.fixture_scopes: dict[str, str] = {}
        self.inbox = Inbox()
        self._starting: dict[RolloutController, Starting] = {}

    # -- which items ------------------------------------------------------------------------------------------------

    def adopt(self, items: Sequence[pytest.Item]) -> None:
        """Learn the selected tests, in their order."""
        self.groups.clear()
        self.groups.update(Grouping(self.planner, self.settings.get("model", [])).of(items))

    # -- handing them to a controller -------------------------------------------------------------------------------

    def launch(self, controller: RolloutController, initialize: Callable[[], None]) -> None:
        """Start a controller's servers in the background; :meth:`wait_ready` waits for them."""
        self._starting[controller] = Starting(initialize)
        if controller not in self.controllers:
            self.controllers.append(controller)

    def wait_ready(self, controller: RolloutController, tick: Callable[[], None] = lambda: None) -> None:
        """Wait until a launched controller has a ready replica; one that nobody launched here is ready.

        Raises:
            ArealEvalError: it could not start.
        """
        starting = self._starting.get(controller)
        if starting is not None:
            starting.wait(tick)

    def begin(self, group: Group, controller: RolloutController, arguments: Mapping[str, Any]) -> None:
        """Hand a group's items to a controller, and those of later groups that need no other fixture.

        Args:
            group: the group whose turn it is.
            controller: the value of its ``controller`` fixture.
            arguments: values of the user's own fixtures, for an async test.
        """
        self._check_scopes(group)
        self.open_run()
        if self.needs_engine(group.model):  # already done where the controller is the plugin's own
            self.describe_model(group.model or next(iter(self.settings.get("model", [])), None))
        _spare_log_capture()
        if controller.on_episode is None:
            controller.on_episode = self.on_episode
        if controller.on_answer is None:
            controller.on_answer = self.on_answer
        if controller not in self.controllers:  # a conftest's own
            self.controllers.append(controller)
        later = list(self.groups.values())
        for other in later[later.index(group) :]:
            if other is group:
                self._submit_group(group, controller, arguments)
            elif self._may_go_along(other, group):
                self._submit_group(other, controller, {})

    def _may_go_along(self, other: Group, group: Group) -> bool:
        """Whether a later group's items can be handed over with an earlier one's."""
        waits = other.started or other.extra_arguments or other.may_be_skipped
        return other.model == group.model and not waits and self.runs_here(other.items[0])

    def owes(self, group: Group) -> bool:
        """Whether any episode of a group has to run: an earlier run may have finished them all."""
        if self.history is None:
            return True
        n_samples, ids = samples_of(group, self.settings), (param_of(item).id for item in group.items)
        return any(self.history.owes(group.name, item_id, n_samples) for item_id in ids)

    def needs_engine(self, model: str | None = None) -> bool:
        """Whether anything has to be generated (with one of several checkpoints)."""
        may = self.history is None or self.history.purpose == "resume"
        mine = (group for group in self.groups.values() if model is None or group.model in (None, model))
        return may and any(map(self.owes, mine))

    def following_model(self, model: str | None) -> str | None:
        """The checkpoint whose turn comes after one's, if something is to be generated with it."""
        later = (g.model for g in self.groups.values() if not g.started and g.model not in (None, model))
        return next((found for found in later if self.needs_engine(found)), None)

    def look_ahead(self, item: pytest.Item) -> None:
        """Hand over a test of a started group that turns out to run in this process too."""
        found = membership(item)
        if found is not None and found[0].controller is not None and item not in self.inbox:
            self._submit(item, found[0].controller)

    def _submit_group(self, group: Group, controller: RolloutController, arguments: Mapping[str, Any]) -> None:
        if self.owes(group):
            group.workflow = build_workflow(group, controller, self.settings, arguments)
            self._check_replay(group, controller)
        group.sampling, group.template = sampling_of(group, self.settings), template_of(group)
        info = controller.engine.info
        check_room(group, self.settings, group.sampling, info.context_length)
        check_honoured(group, group.sampling, group.template, info)
        group.started, group.controller = True, controller
        for item in group.items:
            if item not in self.inbox and self.runs_here(item):
                self._submit(item, controller)

    def _submit(self, item: pytest.Item, controller: RolloutController) -> None:
        group, param = group_of(item), param_of(item)
        spec, settings = group.plan.spec, self.settings
        n_samples = samples_of(group, settings)
        earlier = self.history.of(group.name, param.id, n_samples) if self.history is not None else None
        if earlier is not None and self._recalled(item, controller, earlier.finished, n_samples):
            return
        task_id = controller.submit(
            param.record,
            group.workflow,
            group_size=n_samples,
            item_id=param.id,
            evaluation=group.name,
            timeout_s=time_limit_of(item, spec.episode_timeout, settings),
            reward_range=reward_range_of(group),
            gconfig=group.sampling,
            template_kwargs=group.template,
            callback=lambda rollout: self._deliver(item, rollout, controller),
            finished=earlier.finished if earlier is not None else None,
            answers=earlier.answers if earlier is not None else None,
        )
        self.inbox.expect(item, controller, task_id)

    def _recalled(
        self, item: pytest.Item, controller: RolloutController, finished: Mapping[int, Episode], n_samples: int
    ) -> bool:
        """Take an item's finished episodes over from the earlier run; True if they are all that it has."""
        from pytest_areal_eval.controller.episodes import rollout_of

        for episode in finished.values():
            self.on_recalled(episode)
        if len(finished) < n_samples:
            return False
        self.inbox.keep(item, controller, rollout_of(dict(param_of(item).record), list(finished.values())))
        return True

    def _check_scopes(self, group: Group) -> None:
        for name in ("controller", *group.extra_arguments):
            if self.fixture_scopes.get(name, "session") == "function":
                raise ConfigError(
                    f"{group.key}: fixture {name!r} is made anew for each test, but the episodes of an evaluation run "
                    "at the same time and share it",
                    f"Give {name!r} scope='module' or wider, or make the object inside the test.",
                )

    def _check_replay(self, group: Group, controller: RolloutController) -> None:
        register = getattr(controller.engine, "register", None)
        if register is None:
            return
        n_samples = samples_of(group, self.settings)
        params = [param_of(item) for item in group.items]
        found = [register(group.name, p.id, p.index, p.record.get("id")) for p in params]
        surplus = sum(max(count - n_samples, 0) for count in found)
        if surplus:
            self.notes.append(
                f"{group.name}: {surplus} recorded completions were not scored, "
                f"more than --n-samples={n_samples} an item"
            )
        missing = [p for p, count in zip(params, found, strict=True) if count < n_samples]
        if missing:
            shown = ", ".join(p.id for p in missing[:5])
            raise UserError(
                f"--replay: {group.name}: {len(missing)} of {len(params)} items have fewer than {n_samples} recorded "
                f"completions: {shown}{', …' if len(missing) > 5 else ''}",
                "Rows are found by id, else by index (the row in the dataset, from 0).",
            )

    # -- picking their rollouts up ----------------------------------------------------------------------------------

    def rollout(self, item: pytest.Item, controller: RolloutController, tick: Callable[[], None]) -> Rollout:
        """The item's rollout; waits for it, and asks for a new one if it was picked up before."""
        ticket = self.inbox.of(item)
        if ticket is not None and ticket.controller is not controller:
            self.inbox.cancel([item])
            ticket = None
        if ticket is None:
            self._submit(item, controller)
        return self.inbox.rollout(item, tick)

    def engine_failure(self) -> ArealEvalError | None:
        """Why there is no engine any more, if there is none."""
        lost = (c.failure for c in self.controllers if c.failure is not None)
        return self.engine_error or next(lost, None)

    def was_lost(self, item: pytest.Item) -> bool:
        """Whether the item's rollout ended only because the run was stopped: there is no engine, or no journal."""
        ticket = self.inbox.of(item)
        if ticket is None or ticket.rollout is None or self.engine_failure() is None:
            return False
        return any(e.status in GIVEN_UP for e in ticket.rollout.episodes)

    def _deliver(self, item: pytest.Item, rollout: Rollout, controller: RolloutController) -> None:
        """Called in the controller's thread."""
        self.on_rollout(rollout)
        self.inbox.deliver(item, rollout, controller)


class Starting:
    """A controller's ``initialize`` in a thread of its own, so that the main thread can show what it waits for."""

    def __init__(self, initialize: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(initialize,), name="areal-eval-start", daemon=True)
        self._thread.start()

    def _run(self, initialize: Callable[[], None]) -> None:
        try:
            initialize()
        except BaseException as error:  # handed over to the thread that waits
            self._error = error

    def wait(self, tick: Callable[[], None]) -> None:
        """Until it has returned; ``tick`` is called a few times a second, and what it raised is raised here."""
        while self._thread.is_alive():
            self._thread.join(TICK_S)
            tick()
        if self._error is not None:
            raise self._error


def _spare_log_capture() -> None:
    """Let torch's loggers propagate to the root, where pytest listens.

    By themselves they do not, so pytest's log capture attaches to each of the 44, twelve times a test: 0.3 ms a test in
    every session whose tokenizer made transformers import torch.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "torch":
            logger.propagate = True
