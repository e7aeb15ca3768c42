"""One request, answered once: retried where an attempt may pass, on another replica where there is one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.controller.clock import Clock
from pytest_areal_eval.controller.oddities import Oddities
from pytest_areal_eval.controller.replicas import Replica, Replicas
from pytest_areal_eval.controller.settings import ControllerSettings
from pytest_areal_eval.engines.base import Engine, TransientError, describe
from pytest_areal_eval.errors import RequestError
from pytest_areal_eval.workflows import context

if TYPE_CHECKING:
    import aiohttp

ABORT_LIMIT_S = 1.0
OVERLOADED = frozenset({429, 503})
NEVER_BETTER = frozenset({401, 402})
"""A key that is refused, or not paid for, is refused for every row."""
WRONG_PLACE = frozenset({301, 302, 303, 307, 308, 403, 404, 405})
"""So is an address that redirects, a path or a model that does not exist, unless an answer came from there before."""
UNANSWERED = 8
"""Requests whose attempts are spent, before the first that was answered: the others would fare no better."""


@dataclass(slots=True)
class Progress:
    """Where an episode's current request is, for the message of a time-out.

    Attributes:
        attempts: attempts of this request.
        total_attempts: attempts over all of the episode's requests.
        replica: the replica asked last.
        problem: what the last failed attempt got.
    """

    attempts: int = 0
    total_attempts: int = 0
    replica: str = ""
    problem: str = ""

    def __str__(self) -> str:
        where = f"attempt {self.attempts} on {self.replica}" if self.replica else "no replica was ready"
        return f"{where}; the attempt before got: {self.problem}" if self.problem else where


class EngineClient:
    """Sends requests to the replicas.

    Args:
        engine: how to speak to a replica.
        replicas: those that there are.
        http: the session that all requests share.
        settings: attempts, back-off, limits.
        rng: jitter.
        on_refused: receives an answer that every further request would get too.
        on_first: receives the first request.
        on_odd: receives a line about an answer that is not as it should be.
    """

    def __init__(
        self,
        engine: Engine,
        replicas: Replicas,
        http: aiohttp.ClientSession,
        settings: ControllerSettings,
        rng: Random,
        *,
        on_refused: Callable[[RequestError], None] = lambda error: None,
        on_first: Callable[[ModelRequest], None] = lambda request: None,
        on_odd: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.oddities = Oddities(on_odd)
        self._engine = engine
        self._replicas = replicas
        self._http = http
        self._settings = settings
        self._rng = rng
        self._on_refused = on_refused
        self._on_first: Callable[[ModelRequest], None] | None = on_first
        self._answered = False
        self._unanswered = 0
        self._aborts: set[asyncio.Task[None]] = set()

    async def generate(self, request: ModelRequest, clock: Clock, progress: Progress) -> ModelResponse:
        """Answer one request.

        Args:
            request: what to generate.
            clock: the episode's time limit.
            progress: kept up to date.

        Raises:
            RequestError: a permanent answer, or the attempts are spent; names replica, attempts and last answer.
            EngineLost: no replica is left.
        """
        progress.attempts, progress.problem = 0, ""
        if self._on_first is not None:
            on_first, self._on_first = self._on_first, None
            on_first(request)
        failed, near = None, self._shared_prefix(progress)
        while True:
            replica = await self._replicas.take(clock, avoid=failed, near=near)
            progress.attempts += 1
            progress.total_attempts += 1
            progress.replica = replica.name
            try:
                response = await self._attempt(request, replica)
            except TransientError as error:
                failed, problem = replica, error
            except RequestError as error:
                refusal = self._permanent(error, replica, progress.attempts)
                if error.status in NEVER_BETTER or (error.status in WRONG_PLACE and not self._answered):
                    self._on_refused(refusal)
                raise refusal from error
            else:
                self._answered = True
                self._replicas.answered(replica)
                response.replica, response.attempts = replica.name, progress.attempts
                self.oddities.look(request, response, self._engine.info)
                return response
            finally:
                self._replicas.give_back(replica)
            progress.problem = describe(str(problem))
            self._learn(replica, problem)
            if progress.attempts >= self._settings.max_attempts:
                spent = self._spent(problem, replica, progress.attempts)
                self._count(spent)
                raise spent
            await asyncio.sleep(self._pause_s(progress.attempts))

    async def close(self) -> None:
        """Wait for the aborts under way, at most their own limit."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=ABORT_LIMIT_S)

    @staticmethod
    def _shared_prefix(progress: Progress) -> str:
        """What the beginning of the prompt is known by, where another request has the same one."""
        episode = context.get()
        return episode.item_id if episode.group_size > 1 or progress.total_attempts > 0 else ""

    async def _attempt(self, request: ModelRequest, replica: Replica) -> ModelResponse:
        scope = asyncio.timeout(self._settings.request_timeout_s)
        started = time.perf_counter()
        try:
            async with scope:
                replica.attempts.add(scope)
                response = await self._engine.generate(request, replica.endpoint, self._http)
        except asyncio.CancelledError:
            self._abort(request, replica)
            raise
        except TimeoutError as error:
            if replica.gone:
                raise TransientError(f"replica {replica.name} was lost", lost=True) from error
            self._abort(request, replica)
            limit = self._settings.request_timeout_s
            raise TransientError(f"no answer within {limit} s" if scope.expired() else repr(error)) from error
        finally:
            replica.attempts.discard(scope)
        if response.latency == float("inf"):
            response.latency = time.perf_counter() - started
        return response

    def _learn(self, replica: Replica, problem: TransientError) -> None:
        if problem.lost:
            self._replicas.suspect(replica)
        elif problem.retry_after_s is not None or problem.status in OVERLOADED:
            self._replicas.refused(replica, problem.retry_after_s or self._settings.backoff_s)

    def _pause_s(self, attempts: int) -> float:
        whole: float = min(self._settings.backoff_s * 2 ** (attempts - 1), self._settings.max_backoff_s)
        return whole * (0.5 + 0.5 * self._rng.random())

    def _abort(self, request: ModelRequest, replica: Replica) -> None:
        if replica.gone:
            return
        task = asyncio.get_running_loop().create_task(self._abort_within_limit(request, replica))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort_within_limit(self, request: ModelRequest, replica: Replica) -> None:
        try:
            async with asyncio.timeout(ABORT_LIMIT_S):
                await self._engine.abort(request, replica.endpoint, self._http)
        except (TransientError, RequestError, TimeoutError, OSError):
            return  # best effort: closing the connection has already told the server

    def _count(self, spent: RequestError) -> None:
        """End the run where nothing was ever answered; a server that answered before may do so again."""
        if self._answered:
            return
        self._unanswered += 1
        if self._unanswered >= UNANSWERED:
            message = f"no request was answered, and {self._unanswered} have failed; the last: {spent.args[0]}"
            self._on_refused(RequestError(message, status=spent.status))

    def _permanent(self, error: RequestError, replica: Replica, attempts: int) -> RequestError:
        message = f"{_where(replica)} refused the request (attempt {attempts}): {describe(str(error.args[0]))}"
        return RequestError(message, status=error.status, hint=error.hint)

    def _spent(self, problem: TransientError, replica: Replica, attempts: int) -> RequestError:
        message = f"{_where(replica)} failed after {attempts} attempts; the last: {describe(str(problem))}"
        return RequestError(message, status=problem.status)


def open_session(base_url: str = "") -> aiohttp.ClientSession:
    """The one HTTP session of a run; call it in the loop that will use it.

    Args:
        base_url: of the given endpoints, reached through HTTPS_PROXY and its like; "" for servers of our own.
    """
    import aiohttp

    connector = aiohttp.TCPConnector(
        limit=0,
        ttl_dns_cache=300,
        # uvicorn, under vLLM and SGLang, closes an idle connection after 5 s; closing first avoids the race.
        keepalive_timeout=4.0,
        socket_factory=_keepalive_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        # aiohttp's own trust_env reads .netrc in a thread for every request, which costs more than the request.
        proxy=_proxy(base_url),
    )


def _proxy(base_url: str) -> str | None:
    parts = urlsplit(base_url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def _keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket whose peer is found dead after about a minute of silence, even in the middle of a long answer."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return made


def _where(replica: Replica) -> str:
    return f"{replica.name} ({replica.endpoint.base_url})" if replica.endpoint else replica.name
