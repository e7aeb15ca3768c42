"""One replica at a time: it is admitted when its health answers, and lost when it does not.

Invariant: a replica takes requests only while its health answers.
"""

from __future__ import annotations

import asyncio
import math

from pytest_areal_eval.controller.means import Means
from pytest_areal_eval.controller.member import Member, why_gone
from pytest_areal_eval.controller.probe import DISCOVER_LIMIT_S, Health, Reading, discover, probe
from pytest_areal_eval.controller.probe import reload as load
from pytest_areal_eval.controller.recovery import Loss, Recovery, now
from pytest_areal_eval.controller.replicas import Replica
from pytest_areal_eval.engines.base import Launch, Reloading
from pytest_areal_eval.errors import SchedulerError
from pytest_areal_eval.schedulers.base import State, Status

TICK_S = 0.25
MISSES = 3
END_TRIES = 6
"""At ``TICK_S``: Slurm takes up to a second to say who has ended a job."""
FOREIGN_S = 3.0
"""How long what answers there may be no server of models, as a gateway's page is while its server starts."""
RECONNECT_S = 20.0
"""How long a given address may be silent; nobody here can restart it."""


class Upkeep:
    """What happens to each replica.

    Args:
        means: what the fleet works with.
        recovery: told of each that is lost.

    Attributes:
        once_ready: set when the first one is ready.
    """

    def __init__(self, means: Means, recovery: Recovery) -> None:
        self._means = means
        self._recovery = recovery
        self._noted: set[str] = set()
        self.once_ready = asyncio.Event()

    async def step(self, member: Member, *, polled: bool) -> None:
        """What is due now for one that is not gone.

        Args:
            member: the replica.
            polled: the scheduler has just been asked; the log is read no more often.
        """
        status = member.status
        if member.launch is None:
            if member.endpoint is not None:  # else who starts it will say where it is
                await self._check(member, polled)
        elif status is None:
            return  # not polled since it was started
        elif status.state is State.GONE or status.never:
            await self._recovery.lose(member, Loss(why_gone(status), status.exit_code))
        elif status.state is not State.UP or status.address is None:
            await self._queued(member, status)
        else:
            assert self._means.instances is not None
            member.endpoint = self._means.instances.endpoint(member.name, status.address)
            await self._check(member, polled)

    async def _queued(self, member: Member, status: Status) -> None:
        if status.state is State.STARTING:
            self._begin(member)
        reason = status.reason or "no reason given"
        in_queue = member.phase == "waiting"
        limit_s = self._means.settings.queue_timeout_s if in_queue else self._start_limit_s(member)
        unlimited = in_queue and self._means.replicas.ready  # the run goes on with those, however long this one waits
        limit = "" if unlimited else f"; for {limit_s:g} s at most"
        does = "waits" if status.state is State.WAITING else "starts"
        self._means.tell(member, "waiting", f"{member.name} {does}: {reason}{limit}")
        if not unlimited and now() - member.since > limit_s:
            why = f"still waiting after {limit_s:g} s: {reason}"
            await self._recovery.lose(member, Loss(why, again=not in_queue))

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
            limit_s = min(DISCOVER_LIMIT_S, self._start_limit_s(member))
            return await discover(self._means.engine, member.endpoint, self._means.http, limit_s)
        address = member.status.address if member.status else None
        nonce = address.nonce if address and "{nonce}" in member.launch.argv else ""
        reading = await probe(self._means.http, member.endpoint.base_url + member.launch.ready_path, nonce)
        if reading.health is Health.OK and member.replica is None:
            return await discover(self._means.engine, member.endpoint, self._means.http)
        return reading

    def _begin(self, member: Member) -> None:
        if member.phase == "waiting":
            member.phase, member.since = "starting", now()

    def _admit(self, member: Member) -> None:
        member.misses = 0
        if member.replica is not None:
            member.replica.answered_at = now()
            self._means.replicas.restore(member.replica)
            return
        member.phase = "ready"
        window = float(self._means.engine.info.concurrency) if self._means.settings.adaptive else math.inf
        member.replica = Replica(member.name, member.endpoint, window=window, answered_at=now())
        self._means.replicas.add(member.replica)
        after_s, info = now() - member.since, self._means.engine.info
        self._means.tell(member, "ready", f"{member.name} is ready after {after_s:.1f} s: {info.line}")
        if info.note and info.note not in self._noted:
            self._noted.add(info.note)
            self._means.emit("warning", info.note)
        self.once_ready.set()

    async def _not_yet(self, member: Member, reading: Reading, polled: bool) -> None:
        limit_s = self._start_limit_s(member)
        if reading.health is Health.REJECTED:
            await self._recovery.lose(member, Loss(reading.text))
        elif reading.health is Health.FOREIGN and self._is_foreign(member):
            await self._recovery.lose(member, Loss(reading.text, again=False))
        elif now() - member.since > limit_s:
            option = " (--start-timeout)" if self._means.instances is None else ""  # else the fleet's hint names it
            await self._recovery.lose(member, Loss(f"not ready within {limit_s:g} s{option}: {reading.text}"))
        elif self._means.instances is not None and member.handle is not None and polled:
            log = self._means.instances.log_path(member.handle)
            stages = member.launch.stages if member.launch is not None else ()
            stage = await self._means.instances.stage(member.handle, stages)
            self._means.tell(
                member, "log", f"{member.name} {stage} ({reading.text}; for {limit_s:g} s at most; log {log})"
            )
        elif self._means.instances is None:
            self._means.tell(member, "starting", f"{member.name}: {reading.text}")

    @staticmethod
    def _is_foreign(member: Member) -> bool:
        """Whether what answers there is no server that is late; a given one that was ready before may come back."""
        may_come_back = member.launch is None and member.attempt > 1
        return not may_come_back and now() - member.since > FOREIGN_S

    async def _missed(self, member: Member, replica: Replica, reading: Reading) -> None:
        refused, quiet_s = reading.health is Health.REFUSED, now() - replica.answered_at
        if not refused and quiet_s < self._means.settings.health_interval_s:
            self._means.replicas.restore(replica)  # too busy for a health check, not for its work
            return
        silent = reading.health is Health.SILENT
        if silent and quiet_s < self._means.settings.silence_s:
            return  # SGLang's health check waits for its next step, which a long prompt may take seconds of
        member.misses += 1
        if refused or silent or member.misses >= MISSES:
            end = await self._end_of(member)
            if end is not None:
                member.status = end
                await self._recovery.lose(member, Loss(why_gone(end), end.exit_code))
            else:
                await self._recovery.lose(member, Loss(reading.text, refused=refused))

    async def _end_of(self, member: Member) -> Status | None:
        """The scheduler may learn of an end a moment after its port is closed."""
        for _ in range(END_TRIES):
            if self._means.instances is None or member.handle is None:
                return None
            try:
                status = (await self._means.instances.poll([member.handle])).get(member.handle)
            except SchedulerError as error:
                self._means.emit("warning", f"the scheduler does not answer: {error}")
                return None
            if status is not None and status.state is State.GONE:
                return status
            await asyncio.sleep(TICK_S)
        return None

    async def reload(self, member: Member, engine: Reloading, launch: Launch) -> None:
        """Let its server load the engine's checkpoint; one that cannot is started anew with ``launch``."""
        assert self._means.instances is not None
        member.launch, member.attempt, member.told = launch, 1, ""
        if member.replica is not None and member.endpoint is not None:
            self._means.replicas.suspect(member.replica)  # it takes no request meanwhile
            self._means.tell(member, "starting", f"{member.name} loads {engine.model}")
            problem = await load(engine, member.endpoint, self._means.http, self._start_limit_s(member))
            if not problem:
                self._means.replicas.restore(member.replica)
                member.misses = 0
                self._means.tell(member, "ready", f"{member.name} has loaded {engine.model}")
                self.once_ready.set()
                return
            self._means.emit("warning", f"{member.name} is started anew, it cannot load another checkpoint: {problem}")
            self._means.replicas.remove(member.replica)
            member.replica = None
        await self._recovery.begin_anew(member)

    def _start_limit_s(self, member: Member) -> float:
        if member.launch is None:
            asked_s = self._means.settings.start_timeout_s if member.attempt == 1 else None
            return asked_s or RECONNECT_S
        return self._means.settings.start_timeout_s or member.launch.start_timeout_s
