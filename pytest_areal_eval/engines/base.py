"""The engine's interface: how to build a server's command, and how to speak its HTTP.

Invariant: an engine holds no connection and starts nothing; the scheduler runs its command and the controller owns
the HTTP session, the balance over replicas and the retries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pytest_areal_eval.api import ModelRequest, ModelResponse

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True)
class Gang:
    """What a server's command ends with where it runs once on each of several nodes.

    Attributes:
        every: on each of them; ``{rank}``, ``{nnodes}``, ``{master_addr}`` and ``{master_port}`` are filled in.
        followers: further, on each but the first, which alone answers requests.
    """

    every: tuple[str, ...]
    followers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """How to start one replica: argv with ``{host}``, ``{port}`` and ``{nonce}`` placeholders, and what it needs.

    ``stages`` says what the lines of its log mean, (regular expression, what the server does), for who waits.
    ``gpus`` may be more than one node has where there is a ``gang``.  ``typed`` is argv as a person would type it,
    where that is something else.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    cpus: int = 1
    ready_path: str = "/health"
    start_timeout_s: float = 600.0
    stages: tuple[tuple[str, str], ...] = ()
    gang: Gang | None = None
    typed: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Endpoint:
    """A replica that answers.  ``token`` is sent as a bearer token and never printed."""

    name: str
    base_url: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class EngineInfo:
    """What an engine knows of itself once a replica is up.

    Attributes:
        context_length: prompt and answer together, in tokens; None if unknown.
        concurrency: requests that one replica runs well at once.
        model: the served model's name.
        token_ids: whether it takes and gives token ids; else messages are sent and it tokenizes.
        note: what a person should know of it, in a line.
        sampling_note: what a person should know of it once an answer is sampled.
        schemas: whether it can hold an answer to a JSON schema.
        openai_only: whether it has none but OpenAI's own settings.

    Raises:
        ValueError: a context length or a concurrency below 1.
    """

    context_length: int | None = None
    concurrency: int = 32
    model: str = "default"
    token_ids: bool = True
    note: str = ""
    sampling_note: str = ""
    schemas: bool = False
    openai_only: bool = False

    def __post_init__(self) -> None:
        if self.concurrency < 1 or (self.context_length is not None and self.context_length < 1):
            raise ValueError(f"no room for a single request or token: {self}")  # nothing would ever be sent

    @property
    def line(self) -> str:
        """What was learnt, for a person."""
        context = f", context {self.context_length}" if self.context_length is not None else ""
        return f"{self.model}{context}, {self.concurrency} requests at once"


class Engine(Protocol):
    """One inference backend."""

    name: str
    replicas: int
    info: EngineInfo

    def launch(self, name: str, token: str) -> Launch | None:
        """How to start a replica; None for an engine without servers (replay, a hosted endpoint).

        Args:
            name: the replica's name, ``role/0``.
            token: the session's secret, to be asked of every request; goes into ``env``, never into ``argv``.
        """
        ...

    async def discover(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> EngineInfo:
        """Ask a ready replica for its context length, its concurrency and its model's name."""
        ...

    async def generate(
        self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession
    ) -> ModelResponse:
        """Send one request to one replica and read the answer; one attempt, no retry.

        Raises:
            TransientError: it may succeed elsewhere or later.
            RequestError: it never will.
        """
        ...

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: aiohttp.ClientSession) -> None:
        """Free a request's slot after the caller gave it up; best effort, within a second."""
        ...


@runtime_checkable
class Reloading(Engine, Protocol):
    """An engine whose servers can load another checkpoint of the same form.

    Attributes:
        model: the checkpoint that ``launch`` starts servers with; may be set to another one.
    """

    model: str

    async def reload(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        """Let an idle server that holds another checkpoint load ``model``, and forget what it cached.

        Raises:
            TransientError, RequestError: it did not; what it holds now is not known.
        """
        ...


class TransientError(Exception):
    """An attempt failed in a way that may pass: connection refused or reset, 429, 5xx, a malformed body.

    Args:
        message: what happened.
        retry_after_s: what the server asked to wait, if it did.
        status: HTTP status, or None where the connection failed.
        lost: the connection itself failed, so the replica may be gone.
        foreign: an answer came, in another protocol or of another form than such a server gives.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        status: int | None = None,
        lost: bool = False,
        foreign: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.lost = lost
        self.foreign = foreign


def describe(value: Any, limit: int = 200) -> str:
    """A body or value, shortened to fit into a message."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
