"""What a controller is told, and what it tells while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What servers are given beyond what their engine asks for.

    Attributes:
        env: further variables of their environment; the engine's own win.
        cpus_per_gpu: CPUs for each GPU, or for a server without GPUs; None: what the engine asks for.
        mem_gb_per_gpu: memory likewise, in GB; None: the scheduler's default.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    cpus_per_gpu: int | None = None
    mem_gb_per_gpu: float | None = None

    @property
    def reserves(self) -> bool:
        """Whether CPUs or memory were asked for."""
        return self.cpus_per_gpu is not None or self.mem_gb_per_gpu is not None


MOST_ADAPTIVE = 1024


@dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """Limits of a run.

    Attributes:
        max_concurrency: episodes in flight over all replicas; None: ready replicas × what one runs well.
        adaptive: begin with what the replicas run well and find out how much more they take without a 429 or 503;
            ``max_concurrency``, else :data:`MOST_ADAPTIVE`, is the most.
        episode_timeout_s: limit of one episode; it stands still while no replica is ready.
        request_timeout_s: limit of one HTTP attempt; None: the episode's.
        max_attempts: attempts of one request, the first included.
        backoff_s: pause before the second attempt; doubled for each further one, jittered by half.
        max_backoff_s: the longest such pause.
        start_timeout_s: from a server's start to its first healthy answer; None: what the engine says.
        queue_timeout_s: how long a scheduler may keep the first server waiting; further ones may wait for ever.
        restarts: times that one lost replica is started again.
        health_interval_s: seconds between two health checks of a ready replica.
        silence_s: how long a ready replica may answer neither a health check nor a request before it is lost.
        seed: the run's seed; each episode's is derived from it.
        reward_workers: processes that grade; None: the pool's own default.
        reward_timeout_s: limit of one reward call.
        reward_memory_mb: memory limit of one grading process; None: none.
        needs: what servers are given beyond what their engine asks for.
    """

    max_concurrency: int | None = None
    adaptive: bool = False
    episode_timeout_s: float = 600.0
    request_timeout_s: float | None = None
    max_attempts: int = 5
    backoff_s: float = 0.25
    max_backoff_s: float = 8.0
    start_timeout_s: float | None = None
    queue_timeout_s: float = 86_400.0
    restarts: int = 1
    health_interval_s: float = 2.0
    silence_s: float = 30.0
    seed: int = 0
    reward_workers: int | None = None
    reward_timeout_s: float = 15.0
    reward_memory_mb: int | None = 4096
    needs: Needs = field(default_factory=Needs)

    def __post_init__(self) -> None:
        for name in ("max_concurrency", "episode_timeout_s", "request_timeout_s", "max_attempts"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")


EventKind = Literal["waiting", "starting", "log", "ready", "lost", "restart", "gone", "warning"]


@dataclass(frozen=True)
class Event:
    """Something about the servers that a waiting person wants to read.

    Attributes:
        kind: what happened.
        text: one line.
        at: Unix time.
    """

    kind: EventKind
    text: str
    at: float


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The run at one moment, for a live line.

    Attributes:
        submitted: items handed in and not cancelled.
        done: items finished.
        queued: episodes that wait for a place.
        running: episodes in flight.
        input_tokens: prompt tokens of the finished episodes.
        output_tokens: generated tokens of the finished episodes.
        oldest_item: id of the item that has been in flight longest; empty when nothing runs.
        oldest_age_s: for how long.
        in_flight: requests at each replica that is there.
        replicas_ready: replicas that take requests.
        replicas_total: replicas asked for.
        replicas_lost: times that a ready replica was lost.
        loop_lag_s: how far the event loop is behind; seconds here mean that a workflow blocks it.
    """

    submitted: int = 0
    done: int = 0
    queued: int = 0
    running: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    oldest_item: str = ""
    oldest_age_s: float = 0.0
    in_flight: Mapping[str, int] = field(default_factory=dict)
    replicas_ready: int = 0
    replicas_total: int = 0
    replicas_lost: int = 0
    loop_lag_s: float = 0.0
