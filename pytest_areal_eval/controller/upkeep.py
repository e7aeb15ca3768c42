"""One replica at a time: it is admitted when its health answers, lost when it does not, started again or given up.

Invariant: a replica takes requests only while its health answers, and is started again ``restarts`` times at most, not
counted what a scheduler takes away for others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_areal_eval.controller.instances import Instances
from pytest_areal_eval.controller.member import TAKEN_AWAY, Member, failed_node, why_gone
from pytest_areal_eval.controller.probe import Health, Reading, discover, probe
from pytest_areal_eval.controller.probe import reload as load
from pytest_areal_eval.controller.replicas import Replica, Replicas
from pytest_areal_eval.controller.settings import ControllerSettings, EventKind
from pytest_areal_eval.engines.base import Engine, Launch, Reloading
from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.schedulers.base import State, Status

if TYPE_CHECKING:
    import aiohttp

TICK_S = 0.25
MISSES = 3
END_TRIES = 6
"""At ``TICK_S``: Slurm takes up to a second to say who has ended a job."""
QUICK_S = 10.0
"""A start that ends sooner, with an exit code that another quick end had, is not tried again."""
USAGE_EXIT = 2
"""What argparse ends with: an unknown flag stays unknown, however long the imports before it took."""
NEVER_EXIT = 78
"""EX_CONFIG of sysexits.h: the server says itself that no further start can help."""
RECONNECT_S = 20.0
"""How long a given address may be silent; nobody here can restart it."""

Emit = Callable[[EventKind, str], None]


class Upkeep:
    """What happens to each replica.

    Args:
        engine: discovers what a ready replica can do.
        instances: the replicas' processes; None where addresses were given.
        replicas: receives those that are ready.
        http: for health checks.
        settings: limits and restarts.
        emit: receives (kind, text) for a waiting person.

    Attributes:
        once_ready: set when the first one is ready.
        lost: how many were lost after they had been ready.
        starts: how many instances were started.
    """

    def __init__(
        self,
        engine: Engine,
        instances: Instances | None,
        replicas: Replicas,
        http: aiohttp.ClientSession,
        settings: ControllerSettings,
        emit: Emit,
    ) -> None:
        self._engine = engine
        self._instances = instances
        self._replicas = replicas
        self._http = http
        self._settings = settings
        self._emit = emit
        self._quick_exits: set[int] = set()
        self._noted: set[str] = set()
        self.once_ready = asyncio.Event()
        self.lost = self.starts = 0

    async def start(self, member: Member) -> None:
        """Queue it; the scheduler's own errors are raised."""
        member.phase, member.misses, member.since, member.status = "waiting", 0, now(), None
        if self._instances is not None and member.launch is not None:
            member.handle = await self._instances.start(member.name, member.launch)
            self.starts += 1

    async def step(self, member: Member, *, polled: bool) -> None:
        """What is due now for one that is not gone.

        Args:
            member: the replica.
            polled: the scheduler has just been asked; the log is read no more often.
        """
        status = member.status
        if member.launch is None:
            await self._check(member, polled)
        elif status is None:
            return  # not polled since it was started
        elif status.state is State.GONE or status.never:
            await self._lose(member, why_gone(status), status.exit_code)
        elif status.state is not State.UP or status.address is None:
            await self._queued(member, status)
        else:
            assert self._instances is not None
            member.endpoint = self._instances.endpoint(member.name, status.address)
            await self._check(member, polled)

    async def _queued(self, member: Member, status: Status) -> None:
        if status.state is State.STARTING:
            self._begin(member)
        reason = status.reason or "no reason given"
        in_queue = member.phase == "waiting"
        limit_s = self._settings.queue_timeout_s if in_queue else self._start_limit_s(member)
        unlimited = in_queue and self._replicas.ready  # the run goes on with those, however long this one waits
        limit = "" if unlimited else f"; for {limit_s:g} s at most"
        does = "waits" if status.state is State.WAITING else "starts"
        self._tell(member, "waiting", f"{member.name} {does}: {reason}{limit}")
        if not unlimited and now() - member.since > limit_s:
            await self._lose(member, f"still waiting after {limit_s:g} s: {reason}", again=not in_queue)

    async def _check(self, member: Member, polled: bool) -> None:
        self._begin(member)
        reading = await self._probe(member)
        if reading.health is Health.OK:
            self._admit(member)
        elif member.replica is None:
            await self._not_yet(member, reading, polled)
        else:
            await self._missed(member, member.replica, reading)

    async def _probe(self, member: Member) -> Reading:
        assert member.endpoint is not None
        if member.launch is None:
            if member.replica is not None and member.replica.up:
                return Reading(Health.OK)  # a given address is asked again only when it is in doubt
            return await discover(self._engine, member.endpoint, self._http)
        address = member.status.address if member.status else None
        nonce = address.nonce if address and "{nonce}" in member.launch.argv else ""
        reading = await probe(self._http, member.endpoint.base_url + member.launch.ready_path, nonce)
        if reading.health is Health.OK and member.replica is None:
            return await discover(self._engine, member.endpoint, self._http)
        return reading

    def _begin(self, member: Member) -> None:
        if member.phase == "waiting":
            member.phase, member.since = "starting", now()

    def _admit(self, member: Member) -> None:
        member.misses = 0
        if member.replica is not None:
            member.replica.answered_at = now()
            self._replicas.restore(member.replica)
            return
        member.phase = "ready"
        window = float(self._engine.info.concurrency) if self._settings.adaptive else math.inf
        member.replica = Replica(member.name, member.endpoint, window=window, answered_at=now())
        self._replicas.add(member.replica)
        after_s, info = now() - member.since, self._engine.info
        self._tell(member, "ready", f"{member.name} is ready after {after_s:.1f} s: {info.line}")
        if info.note and info.note not in self._noted:
            self._noted.add(info.note)
            self._emit("warning", info.note)
        self.once_ready.set()

    async def _not_yet(self, member: Member, reading: Reading, polled: bool) -> None:
        limit_s = self._start_limit_s(member)
        if reading.health is Health.REJECTED:
            await self._lose(member, reading.text)
        elif now() - member.since > limit_s:
            option = " (--start-timeout)" if self._instances is None else ""  # else the fleet's hint names it
            await self._lose(member, f"not ready within {limit_s:g} s{option}: {reading.text}")
        elif self._instances is not None and member.handle is not None and polled:
            log = self._instances.log_path(member.handle)
            stages = member.launch.stages if member.launch is not None else ()
            stage = await self._instances.stage(member.handle, stages)
            self._tell(member, "log", f"{member.name} {stage} ({reading.text}; for {limit_s:g} s at most; log {log})")
        elif self._instances is None:
            self._tell(member, "starting", f"{member.name}: {reading.text}")

    async def _missed(self, member: Member, replica: Replica, reading: Reading) -> None:
        refused, quiet_s = reading.health is Health.REFUSED, now() - replica.answered_at
        if not refused and quiet_s < self._settings.health_interval_s:
            self._replicas.restore(replica)  # too busy for a health check, not for its work
            return
        silent = reading.health is Health.SILENT
        if silent and quiet_s < self._settings.silence_s:
            return  # SGLang's health check waits for its next step, which a long prompt may take seconds of
        member.misses += 1
        if refused or silent or member.misses >= MISSES:
            end = await self._end_of(member)
            if end is not None:
                member.status = end
                await self._lose(member, why_gone(end), end.exit_code)
            else:
                await self._lose(member, reading.text)

    async def _end_of(self, member: Member) -> Status | None:
        """The scheduler may learn of an end a moment after its port is closed."""
        for _ in range(END_TRIES):
            if self._instances is None or member.handle is None:
                return None
            try:
                status = (await self._instances.poll([member.handle])).get(member.handle)
            except SchedulerError as error:
                self._emit("warning", f"the scheduler does not answer: {error}")
                return None
            if status is not None and status.state is State.GONE:
                return status
            await asyncio.sleep(TICK_S)
        return None

    async def _lose(self, member: Member, why: str, exit_code: int | None = None, *, again: bool = True) -> None:
        was_ready, ran_s = member.replica is not None, now() - member.since
        if member.replica is not None:
            self.lost += 1
            self._replicas.remove(member.replica)
            member.replica = None
            member.owed += member.status is not None and member.status.lost in TAKEN_AWAY
        self._emit("lost", f"{member.name} {'was lost' if was_ready else 'did not start'}: {why}")
        member.cause = f"{member.name}, attempt {member.attempt}: {why}"
        await self._blame(member, exit_code)
        never = member.status is not None and member.status.never
        queued = member.status is not None and member.status.state is State.WAITING
        if self._instances is not None and member.handle is not None:
            if not queued and not never:  # else nothing has run
                member.cause = await self._instances.obituary(member.handle, member.cause)
            try:
                await self._instances.stop(member.handle)
            except SchedulerError as error:
                self._emit("warning", f"{member.name} ({member.handle.id}) could not be stopped: {error}")
        quick = exit_code if not was_ready and ran_s < QUICK_S else None
        never = never or not again or exit_code == NEVER_EXIT or (exit_code == USAGE_EXIT and not was_ready)
        hopeless = never or quick in self._quick_exits or (member.launch is None and not was_ready)
        if quick is not None:
            self._quick_exits.add(quick)
        if hopeless or member.attempt > self._settings.restarts + member.owed:
            self._give_up(member)
        else:
            await self._restart(member)

    async def _blame(self, member: Member, exit_code: int | None) -> None:
        node = failed_node(member.status)
        if node is None or self._instances is None or exit_code in (USAGE_EXIT, NEVER_EXIT):
            return
        try:
            given_up = await self._instances.blame(node)
        except SchedulerError as error:
            self._emit("warning", f"the scheduler does not answer: {error}")
            return
        if given_up:
            self._emit("warning", given_up)

    async def _restart(self, member: Member) -> None:
        member.attempt += 1
        self._emit("restart", f"{member.name}: attempt {member.attempt} of {self._settings.restarts + member.owed + 1}")
        try:
            await self.start(member)
        except SchedulerError as error:
            member.cause = f"{member.cause}\nIt cannot be started again: {error}"
            self._give_up(member)

    def _give_up(self, member: Member) -> None:
        member.phase = "gone"
        self._emit("gone", f"{member.name} is given up after attempt {member.attempt}")

    async def reload(self, member: Member, engine: Reloading, launch: Launch) -> None:
        """Let its server load the engine's checkpoint; one that cannot is started anew with ``launch``."""
        assert self._instances is not None
        member.launch, member.attempt, member.told = launch, 1, ""
        if member.replica is not None and member.endpoint is not None:
            self._replicas.suspect(member.replica)  # it takes no request meanwhile
            self._tell(member, "starting", f"{member.name} loads {engine.model}")
            problem = await load(engine, member.endpoint, self._http, self._start_limit_s(member))
            if not problem:
                self._replicas.restore(member.replica)
                member.misses = 0
                self._tell(member, "ready", f"{member.name} has loaded {engine.model}")
                self.once_ready.set()
                return
            self._emit("warning", f"{member.name} is started anew, it cannot load another checkpoint: {problem}")
            self._replicas.remove(member.replica)
            member.replica = None
        try:
            if member.handle is not None:
                await self._instances.stop(member.handle)
            await self.start(member)
        except SchedulerError as error:
            member.cause = f"{member.name} cannot be started again: {error}"
            self._give_up(member)

    def _start_limit_s(self, member: Member) -> float:
        if member.launch is None:
            asked_s = self._settings.start_timeout_s if member.attempt == 1 else None
            return asked_s or RECONNECT_S
        return self._settings.start_timeout_s or member.launch.start_timeout_s

    def _tell(self, member: Member, kind: EventKind, text: str) -> None:
        if text != member.told:
            member.told = text
            self._emit(kind, text)


def now() -> float:
    """The running loop's time."""
    return asyncio.get_running_loop().time()
