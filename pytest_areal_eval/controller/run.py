"""What lives in the loop's thread between ``initialize`` and ``destroy``: replicas, client, fleet and pool, wired."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.agents import Agents
from pytest_areal_eval.api import Episode, EpisodeStatus, ModelRequest, ModelResponse
from pytest_areal_eval.controller.client import EngineClient, Progress, open_session
from pytest_areal_eval.controller.clock import Clock
from pytest_areal_eval.controller.episodes import Surroundings, Unit, run_episode
from pytest_areal_eval.controller.fleet import Fleet
from pytest_areal_eval.controller.instances import Instances
from pytest_areal_eval.controller.listeners import Listeners
from pytest_areal_eval.controller.means import Means
from pytest_areal_eval.controller.member import Member
from pytest_areal_eval.controller.pool import EpisodePool
from pytest_areal_eval.controller.replicas import Replica, Replicas
from pytest_areal_eval.controller.settings import MOST_ADAPTIVE, ControllerSettings, Event, Snapshot
from pytest_areal_eval.engines.base import Endpoint, Engine, Launch, Reloading
from pytest_areal_eval.errors import ArealEvalError, ConfigError, EngineLost, RequestError
from pytest_areal_eval.journal.answers import Answer
from pytest_areal_eval.rewards.pool import RewardPool
from pytest_areal_eval.schedulers.base import Scheduler
from pytest_areal_eval.stats.areal import areal_cells
from pytest_areal_eval.stats.tracker import Trackers

if TYPE_CHECKING:
    import aiohttp

LEAVE_S = 3.0
"""How long running workflows may take to notice that they were cancelled."""


class Run:
    """One run.  ``start``, ``generate`` and ``close`` run in its loop; the rest may be called from any thread.

    Args:
        loop: where everything runs.
        engine: the inference backend.
        scheduler: starts its servers.
        settings: limits.
        on_episode: receives each finished episode.
        on_event: receives what happens to the servers.
        on_answer: receives each answer before it is graded, and whether it is an earlier run's.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        scheduler: Scheduler | None,
        settings: ControllerSettings,
        on_episode: Callable[[Episode], None],
        on_event: Callable[[Event], None],
        on_answer: Callable[[Answer, bool], None] | None = None,
    ) -> None:
        self.failure: ArealEvalError | None = None
        self.fleet: Fleet | None = None
        self.instances: Instances | None = None
        self.wanted = engine.replicas
        self.trackers = Trackers()
        self.tokenizer: Any = None
        self._rng = Random(settings.seed)
        self.replicas = Replicas(self._set_limit, self._rng)
        self._engine = engine
        self._scheduler = scheduler
        self._settings = settings
        self._listeners = Listeners(on_episode, on_event, on_answer, self._stop_for)
        self._reward_pool = RewardPool(settings.reward_workers, settings.reward_timeout_s, settings.reward_memory_mb)
        self._agents = Agents(lambda text: self._listeners.event("warning", text))
        self.pool = EpisodePool(loop, self._run_episode, self._note, self._stop_for)
        self._around: Surroundings | None = None
        self._warmed = False
        self._token = secrets.token_urlsafe(32)
        self._names: list[str] = []
        self._watch: asyncio.Task[None] | None = None
        self._http: aiohttp.ClientSession | None = None

    async def start(
        self,
        role: str,
        server_args: Mapping[str, Any] | None,
        server_infos: Sequence[Endpoint] | Callable[[], Sequence[Endpoint]] | None,
        tokenizer: Any,
    ) -> None:
        """Bring the servers up and load the tokenizer meanwhile; see ``RolloutController.initialize``."""
        source = server_infos if callable(server_infos) else None
        given = None if callable(server_infos) else server_infos
        members = [] if source is not None else self._members(role, server_args, given)
        self._http = http = open_session(given[0].base_url if given else "")
        loading = asyncio.ensure_future(_load(tokenizer))
        try:
            if members or source is not None:
                await self._start_fleet(members, source, http, loading)
            else:
                self.replicas.add(Replica(self._engine.name, None))
            loaded = await loading
            self.tokenizer = loaded if self._engine.info.token_ids else None
        finally:
            loading.cancel()
        self._around = Surroundings(
            client=EngineClient(
                self._engine,
                self.replicas,
                http,
                self._settings,
                self._rng,
                on_refused=self._refused,
                on_first=self._look_at,
                on_odd=lambda line: self._listeners.event("warning", line),
            ),
            engine=self._engine,
            tokenizer=self.tokenizer,
            run_seed=self._settings.seed,
            reward_pool=self._reward_pool,
            agents=self._agents,
            trackers=self.trackers,
            on_answer=self._listeners.answer if self._listeners.hears_answers else None,
        )
        self.pool.tick()
        self._set_limit()

    async def update_weights(self, model: str) -> None:
        """Go on with another checkpoint; see ``RolloutController.update_weights``."""
        if self.fleet is None or self.instances is None or not isinstance(self._engine, Reloading):
            raise ConfigError(f"the servers of the engine {self._engine.name!r} cannot load another checkpoint")
        self.pool.cancel(None)
        if self._around is not None:
            self._around.client.oddities.forget()
        self._engine.model = model
        await self.fleet.reload(self._engine, {name: self._launch(name) for name in self._names})
        await self._until_ready(self.fleet, set())

    async def close(self) -> None:
        """End the episodes and the watch, in a few seconds."""
        await self.pool.close(LEAVE_S)
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch}, timeout=LEAVE_S)
        await self._agents.close()
        if self._around is not None:
            await self._around.client.close()

    async def disconnect(self) -> None:
        """Close the connections; the last thing in the loop."""
        if self._http is not None:
            await self._http.close()

    async def generate(self, request: ModelRequest, limit_s: float) -> ModelResponse:
        """One request outside any episode."""
        assert self._around is not None
        async with Clock(limit_s) as clock:
            return await self._around.client.generate(ModelRequest.of(request), clock, Progress())

    def snapshot(self) -> Snapshot:
        """The run at this moment."""
        return dataclasses.replace(
            self.pool.snapshot(),
            in_flight=self.replicas.loads(),
            replicas_ready=self.replicas.ready if self.fleet is not None else self.wanted,
            replicas_total=self.fleet.size if self.fleet is not None else self.wanted,
            replicas_lost=self.fleet.lost if self.fleet is not None else 0,
        )

    def expect_grading(self) -> None:
        """Start the graders while the first answers are generated; once."""
        if not self._warmed:
            self._warmed = True
            self._reward_pool.warm()

    def stop_processes(self) -> None:
        """End the servers and the graders; from any thread, also while the loop is stuck."""
        try:
            if self.instances is not None:
                self.instances.stop_all()
        finally:
            self._agents.kill()
            self._reward_pool.close()

    def _members(
        self, role: str, server_args: Mapping[str, Any] | None, server_infos: Sequence[Endpoint] | None
    ) -> list[Member]:
        if server_infos is not None:
            return [Member(endpoint.name, endpoint=endpoint) for endpoint in server_infos]
        self._names = [f"{role}/{index}" for index in range(self._engine.replicas)]
        if not self._names or self._engine.launch(self._names[0], self._token) is None:
            return []
        if self._scheduler is None:
            raise ConfigError(
                f"the engine {self._engine.name!r} starts servers, and there is no scheduler to start them",
                "Give RolloutController(engine, scheduler), or server_infos= of servers that run already.",
            )
        self.instances = Instances(
            self._scheduler, self._token, server_args, self._settings.start_timeout_s, self._settings.needs
        )
        return [Member(name, launch=self._launch(name)) for name in self._names]

    def _launch(self, name: str) -> Launch:
        launch = self._engine.launch(name, self._token)
        assert launch is not None
        return launch

    async def _start_fleet(
        self,
        members: Sequence[Member],
        source: Callable[[], Sequence[Endpoint]] | None,
        http: aiohttp.ClientSession,
        loading: asyncio.Future[Any],
    ) -> None:
        means = Means(self._engine, self.instances, self.replicas, http, self._settings, self._listeners.event)
        self.fleet = Fleet(members, means, source)
        self._watch = asyncio.get_running_loop().create_task(self.fleet.run())
        await self._until_ready(self.fleet, {loading})
        self._watch.add_done_callback(self._watch_ended)

    async def _until_ready(self, fleet: Fleet, awaited: set[asyncio.Future[Any]]) -> None:
        """Wait for the first ready replica, and for ``awaited``."""
        assert self._watch is not None
        ready = asyncio.get_running_loop().create_task(fleet.first_ready())
        awaited = {ready, *awaited}
        try:
            while awaited:  # any may fail long before another is done, and so may the watch
                await asyncio.wait({*awaited, self._watch}, return_when=asyncio.FIRST_COMPLETED)
                for ended in (self._watch, *awaited):
                    if ended.done():
                        ended.result()
                awaited = {future for future in awaited if not future.done()}
        finally:
            ready.cancel()

    async def _run_episode(self, unit: Unit) -> Episode:
        assert self._around is not None
        return await run_episode(unit, self._around)

    def _set_limit(self) -> None:
        if self._around is None:
            return
        ready = self.replicas.ready
        if self._settings.adaptive and self.fleet is not None:
            self.pool.set_limit(int(min(self.replicas.room, self._settings.max_concurrency or MOST_ADAPTIVE)))
            return
        replicas = ready if self.fleet is not None else self.wanted
        self.pool.set_limit((self._settings.max_concurrency or replicas * self._engine.info.concurrency) * (ready > 0))

    def _note(self, episode: Episode) -> None:
        self.trackers.add(areal_cells([episode]))
        self._listeners.episode(episode)

    def _stop_for(self, what: str, error: Exception) -> None:
        """End what runs and what is queued, for what a listener or a callback raised; once."""
        if self.failure is not None:
            return
        why = f"{what} raised {type(error).__name__}: {error}"
        if isinstance(error, ArealEvalError):
            self.failure = error
        else:
            self.failure = ArealEvalError(f"the run was stopped: {why}")
            self.failure.__cause__ = error
        self.pool.end_all(EpisodeStatus.CANCELLED, f"the run was stopped: {why}")

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        error = None if watch.cancelled() else watch.exception()
        if error is None or self.failure is not None:
            return
        if not isinstance(error, ArealEvalError):
            error = EngineLost(f"watching the replicas failed: {error!r}")
        self._lose(error)

    def _lose(self, lost: ArealEvalError) -> None:
        self.failure, first_line = lost, str(lost).splitlines()[0]
        self.replicas.close(first_line)
        self.pool.end_all(EpisodeStatus.ENGINE_LOST, first_line)

    def _refused(self, error: RequestError) -> None:
        """One message and no further request, instead of one refusal a row."""
        if self.failure is None:
            self._lose(EngineLost(str(error.args[0]), error.hint))

    def _look_at(self, request: ModelRequest) -> None:
        """A template that writes BOS and a tokenizer that adds another change every answer and raise no error."""
        bos, ids = getattr(request.tokenizer, "bos_token_id", None), request.input_ids
        if bos is not None and ids[:2] == [bos, bos]:
            self._listeners.event(
                "warning", f"the prompts begin with two BOS tokens ({bos}): a doubled BOS lowers scores"
            )


async def _load(tokenizer: Any) -> Any:
    """A tokenizer is callable too; what has no chat template method is a function that loads one."""
    if callable(tokenizer) and not hasattr(tokenizer, "apply_chat_template"):
        return await asyncio.to_thread(tokenizer)
    return tokenizer
