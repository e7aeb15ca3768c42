"""``RolloutController``: initialize, submit, wait, export_stats, destroy.

One asyncio loop in a daemon thread runs everything; the public methods may be called from any other thread.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any

from pytest_areal_eval.api import Episode, GenerationHyperparameters, ModelRequest, ModelResponse, Rollout
from pytest_areal_eval.controller.episodes import Submission
from pytest_areal_eval.controller.loop import LoopThread
from pytest_areal_eval.controller.run import Run
from pytest_areal_eval.controller.settings import ControllerSettings, Event, Snapshot
from pytest_areal_eval.engines.base import Endpoint, Engine
from pytest_areal_eval.errors import ArealEvalError
from pytest_areal_eval.journal.answers import Answer
from pytest_areal_eval.schedulers.base import Scheduler
from pytest_areal_eval.workflows.base import resolve_workflow

CLOSE_LIMIT_S = 8.0
WORKFLOWS_KEPT = 64


class RolloutController:
    """Runs workflows on items, many at once, against the replicas of one engine.

    Args:
        engine: the inference backend.
        scheduler: starts its servers; needed where the engine has servers to start and no address is given.
        settings: limits.
        tokenizer: an object, or a function that loads one (called in a thread while the servers start).
        on_episode: called in the loop's thread with each finished episode before its rollout is announced; what it
            raises stops the run and becomes :attr:`failure`.
        on_event: called in the loop's thread with what a waiting person wants to read.
        on_answer: called in the loop's thread with each answer of the engine before it is graded, and whether it is
            an earlier run's; what it raises stops the run as ``on_episode``'s does.

    Attributes:
        on_episode: as given; may be set until the first ``submit``.
        on_answer: the same.
    """

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler | None = None,
        *,
        settings: ControllerSettings | None = None,
        tokenizer: Any = None,
        on_episode: Callable[[Episode], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_answer: Callable[[Answer, bool], None] | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings or ControllerSettings()
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self.on_episode = on_episode
        self.on_event = on_event
        self.on_answer = on_answer
        self._task_ids = itertools.count()
        self._workflows: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        self._loop: LoopThread | None = None
        self._run: Run | None = None
        self._destroying = threading.Lock()
        self._destroyed = False

    def initialize(
        self,
        role: str = "eval-rollout",
        server_args: Mapping[str, Any] | None = None,
        server_infos: Sequence[Endpoint] | Callable[[], Sequence[Endpoint]] | None = None,
    ) -> None:
        """Start the servers, or attach to given ones, and return when the first is ready; the others join later.

        Args:
            role: the replicas are named ``role/0``, ``role/1``, ...
            server_args: further options of the servers' command, ``{"mem_fraction_static": 0.8}``.
            server_infos: addresses of servers that run already; nothing is started then.  A function that returns them
                is asked again every second, in the loop's thread: a replica, known by its name, is wherever the last
                answer has it, and what the function raises ends the run.

        Raises:
            EngineStartError: with the command, the exit code and the end of the server's log.
            CannotFit: the scheduler can never give what a replica needs.
            CheckpointError: the tokenizer cannot be loaded.
        """
        if self._loop is not None or self._destroyed:
            raise RuntimeError("this controller was initialized before; make a new one")
        self._loop = loop = LoopThread("areal-eval")
        self._run = run = Run(
            loop.loop,
            self.engine,
            self._scheduler,
            self.settings,
            self._episode_ended,
            self._happened,
            self._answered,
        )
        try:
            loop.call(run.start(role, server_args, server_infos, self._tokenizer))
        except CancelledError as error:
            self.destroy()  # returns when the other thread's is done
            raise RuntimeError("the controller was destroyed while it started") from error
        except BaseException:
            self.destroy()
            raise

    def update_weights(self, path: str) -> None:
        """Go on with another checkpoint, whose files but the weights equal the first one's; the servers stay up.

        A server that cannot load it is started anew with it.  What is outstanding is dropped, as by :meth:`cancel`.
        Returns when the first replica has it; none answers with another one's weights.

        Args:
            path: the checkpoint.

        Raises:
            ConfigError: the engine's servers cannot load another checkpoint, or were not started here.
            EngineStartError: no server came up with it.
        """
        run, loop = self._started(), self._loop
        assert loop is not None
        loop.call(run.update_weights(path))

    def submit(
        self,
        data: Mapping[str, Any],
        workflow: Any,
        workflow_kwargs: Mapping[str, Any] | None = None,
        group_size: int = 1,
        *,
        item_id: str | None = None,
        evaluation: str = "",
        gconfig: GenerationHyperparameters | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        reward_range: tuple[float, float] | None = None,
        callback: Callable[[Rollout], None] | None = None,
        finished: Mapping[int, Episode] | None = None,
        answers: Mapping[int, Sequence[Answer]] | None = None,
    ) -> int:
        """Hand an item in; returns its task id at once.

        Args:
            data: the record; each episode gets a copy.
            workflow: see :func:`~pytest_areal_eval.workflows.base.resolve_workflow`.
            workflow_kwargs: its constructor's arguments.  The same two objects again give the same workflow again.
            group_size: episodes of this item; they share nothing but the item.
            item_id: its id; None: the task id.
            evaluation: its evaluation's name.
            gconfig: sampling of ``engine.chat``.
            template_kwargs: chat template arguments of ``engine.chat``.
            timeout_s: limit of one episode; None: the settings'.
            reward_range: lowest and highest reward of an episode; None: every finite number.
            callback: receives the rollout in the loop's thread, and ``wait`` does not return it; what it raises stops
                the run and becomes :attr:`failure`.
            finished: episodes by index that an earlier run finished; they do not run again.
            answers: what an earlier run's engine answered to the others, by index: each request that is asked again
                gets its answer from here.

        Raises:
            ConfigError: the workflow cannot be built.
            ValueError: ``group_size`` is not positive, or ``finished`` leaves nothing to run.
        """
        if group_size < 1:
            raise ValueError(f"group_size must be >= 1, got {group_size}")
        episodes = [(finished or {}).get(index) for index in range(group_size)]
        if None not in episodes:
            raise ValueError(f"all {group_size} episodes of item {item_id!r} are finished; nothing is left to run")
        run, task_id = self._started(), next(self._task_ids)
        resolved = self._resolve(workflow, workflow_kwargs)
        if getattr(resolved, "grades_in_pool", False):
            run.expect_grading()
        run.pool.submit(
            Submission(
                task_id=task_id,
                data=data,
                workflow=resolved,
                item_id=str(task_id) if item_id is None else item_id,
                evaluation=evaluation,
                gconfig=gconfig,
                template_kwargs=template_kwargs or {},
                timeout_s=self.settings.episode_timeout_s if timeout_s is None else timeout_s,
                callback=callback,
                episodes=episodes,
                missing=episodes.count(None),
                answers=answers or {},
                reward_range=reward_range,
            )
        )
        return task_id

    def wait(
        self,
        count: int | None = None,
        timeout: float | None = None,
        *,
        ids: Sequence[int] | None = None,
    ) -> list[Rollout]:
        """Wait for finished rollouts; each is handed out once.

        Args:
            count: the next ``count`` to finish, returned in order of their ids; None: all that are outstanding.
            timeout: seconds; None: as long as the episodes' own limits let it take.
            ids: exactly these instead, in this order.

        Raises:
            TimeoutError: how many there are, and the item that has run longest; what has finished stays.
            ValueError: fewer are outstanding than asked for, or ``count`` is not positive.
            RuntimeError: the controller was destroyed.
        """
        run, loop = self._started(), self._loop
        assert loop is not None
        loop.refuse_inside()
        return run.pool.wait(count, timeout, ids)

    def export_stats(self) -> dict[str, float]:
        """Means by AReaL's keys since the last call, each with its ``__count``: ``eval-rollout/reward``, ..."""
        return self._started().trackers.export_all()

    def destroy(self) -> None:
        """End everything that was started, in at most about 15 s; at any moment, any number of times."""
        if self._loop is not None:
            self._loop.refuse_inside()
        with self._destroying:
            loop, run, done, self._destroyed = self._loop, self._run, self._destroyed, True
            if done or loop is None or run is None:
                return
            try:
                loop.call(run.close(), CLOSE_LIMIT_S)
            except TimeoutError:
                self._happened(Event("warning", "a workflow blocks the event loop; it is left behind", time.time()))
            finally:
                try:
                    run.stop_processes()
                finally:
                    loop.stop(1.0, run.disconnect)

    # Beside AReaL's steps.

    def cancel(self, ids: Collection[int] | None = None) -> None:
        """Drop items that are not finished (None: all): no rollout, no callback; their slots are freed."""
        self._started().pool.cancel(ids)

    def pause(self) -> None:
        """Start no further episode; those that run go on."""
        self._set_paused(True)

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._set_paused(False)

    def rollout_batch(
        self,
        data: Sequence[Mapping[str, Any]],
        workflow: Any,
        workflow_kwargs: Mapping[str, Any] | None = None,
        group_size: int = 1,
        **options: Any,
    ) -> list[Rollout]:
        """Submit all and wait for all; in the order of ``data``.  ``options`` as :meth:`submit`."""
        ids = [self.submit(item, workflow, workflow_kwargs, group_size, **options) for item in data]
        try:
            return self.wait(ids=ids)
        except BaseException:
            if not self._destroyed:
                self.cancel(ids)
            raise

    async def agenerate(self, req: ModelRequest) -> ModelResponse:
        """One generation outside any episode, balanced and retried as theirs are; from any event loop."""
        run, loop = self._started(), self._loop
        assert loop is not None
        work = run.generate(req, self.settings.episode_timeout_s)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop.loop))

    def get_version(self) -> int:
        """0: a checkpoint under evaluation does not change."""
        return 0

    def snapshot(self) -> Snapshot:
        """The run at this moment; cheap, from any thread."""
        return self._run.snapshot() if self._run is not None else Snapshot(replicas_total=self.engine.replicas)

    @property
    def endpoints(self) -> list[Endpoint]:
        """Addresses of the ready replicas, for another controller to attach to."""
        return self._run.replicas.endpoints if self._run is not None else []

    @property
    def tokenizer(self) -> Any:
        """The loaded tokenizer; None before :meth:`initialize`, or where there is none."""
        return self._run.tokenizer if self._run is not None else None

    @property
    def failure(self) -> ArealEvalError | None:
        """Why the run stopped; None while it goes on.  What had finished is kept."""
        return self._run.failure if self._run is not None else None

    def __enter__(self) -> RolloutController:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    def _episode_ended(self, episode: Episode) -> None:
        if self.on_episode is not None:
            self.on_episode(episode)

    def _answered(self, answer: Answer, old: bool) -> None:
        if self.on_answer is not None:
            self.on_answer(answer, old)

    def _happened(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)

    def _set_paused(self, paused: bool) -> None:
        run, loop = self._started(), self._loop
        assert loop is not None
        loop.loop.call_soon_threadsafe(run.pool.pause, paused)

    def _started(self) -> Run:
        if self._destroyed:
            raise RuntimeError("the controller was destroyed; make a new one")
        if self._run is None:
            raise RuntimeError("call initialize() first")
        return self._run

    def _resolve(self, workflow: Any, kwargs: Mapping[str, Any] | None) -> Any:
        key = (id(workflow), id(kwargs))
        if key not in self._workflows:
            if len(self._workflows) >= WORKFLOWS_KEPT:
                self._workflows.pop(next(iter(self._workflows)))
            # The two objects are kept beside the result: while they live, no other object has their ids.
            self._workflows[key] = (resolve_workflow(workflow, kwargs), workflow, kwargs)
        return self._workflows[key][0]
