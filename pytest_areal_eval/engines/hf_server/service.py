"""What the endpoints share: the loaded model, the batcher, and running a request's generations to their end.

Invariant: a generation that was submitted and whose client has gone is cancelled.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web

from pytest_areal_eval.engines.hf_server.fields import RequestRefusedError
from pytest_areal_eval.engines.hf_server.generation import Generation, Sampling
from pytest_areal_eval.engines.hf_server.text import TextStream, held_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_areal_eval.engines.hf_server.batcher import Batcher
    from pytest_areal_eval.engines.hf_server.loading import LoadedModel

MAX_N = 1024
IDLE_LIMIT_S = 10.0


class Piece(NamedTuple):
    """Text that a generation grew by; the last piece carries the rest of it."""

    generation: Generation
    text: str
    last: bool = False


@dataclass
class Service:
    """The server's state.

    Attributes:
        served_name: the model's name in requests.
        nonce: what ``/health`` returns.
        rows: sequences at once.
        model, batcher: set once the model is ready.
        next_path: the checkpoint that takes the model's place.
        loaded: set while a model is ready.
        idle: set while no request runs.
    """

    served_name: str
    nonce: str
    rows: int
    model: LoadedModel | None = None
    batcher: Batcher | None = None
    next_path: str | None = None
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    started_at: int = field(default_factory=lambda: int(time.time()))
    running: dict[str, list[Generation]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def ready(self) -> LoadedModel:
        """The model; refused with 503 before it is loaded."""
        if self.model is None:
            raise RequestRefusedError("the model is still loading; wait until /health answers 200", status=503)
        return self.model

    def check_name(self, name: Any) -> None:
        """Refuse another model's name with 404; an absent one means this model."""
        if name not in (None, self.served_name):
            raise RequestRefusedError(
                f"the model {name!r} does not exist, this server serves {self.served_name!r}", param="model", status=404
            )

    def budget(self, prompt: list[int], wanted: int | None, name: str) -> int:
        """Tokens that may be generated: ``wanted``, or all that the context leaves where None."""
        limit = self.ready.context_length
        if not prompt:
            raise RequestRefusedError("the prompt is empty: give it at least one token", param="prompt")
        if len(prompt) + (wanted or 1) > limit:
            raise RequestRefusedError(
                f"the prompt has {len(prompt)} tokens and `{name}` asks for {wanted or 1} more, "
                f"but the model's context length is {limit} tokens",
                param=name,
            )
        return wanted or limit - len(prompt)

    def generations(
        self, prompt: list[int], sampling: Sampling, n: int, rid: str | None = None, *, streamed: bool = False
    ) -> list[Generation]:
        """``n`` generations of one prompt, not submitted yet."""
        rid, decode = rid or uuid.uuid4().hex, self.ready.decode
        return [
            Generation(
                rid, prompt, sampling, TextStream(decode, sampling.skip_special_tokens), index=i, streamed=streamed
            )
            for i in range(n)
        ]

    @contextmanager
    def _submitted(self, generations: list[Generation]) -> Iterator[None]:
        batcher = self.batcher
        assert batcher is not None
        for generation in generations:
            self.running.setdefault(generation.rid, []).append(generation)
        self.idle.clear()
        batcher.submit(generations)
        try:
            yield
        finally:
            unfinished = [g for g in generations if g.finish is None]
            if unfinished:
                batcher.cancel(unfinished)
            for rid in {g.rid for g in generations}:
                self.running.pop(rid, None)
            if not self.running:
                self.idle.set()

    async def complete(self, generations: list[Generation]) -> None:
        """Run generations to their end.

        Raises:
            RequestRefusedError: with status 500, if the model failed.
        """
        with self._submitted(generations):
            for generation in generations:
                while generation.finish is None:
                    await generation.news.wait()
                    generation.news.clear()
        raise_for_errors(generations)

    async def stream(self, generations: list[Generation]) -> AsyncIterator[Piece]:
        """Run generations to their end; yields their text as it comes."""
        queue: asyncio.Queue[Piece] = asyncio.Queue()
        with self._submitted(generations):
            followers = [asyncio.ensure_future(_follow(g, queue)) for g in generations]
            try:
                unfinished = len(generations)
                while unfinished:
                    piece = await queue.get()
                    unfinished -= piece.last
                    yield piece
            finally:
                for follower in followers:
                    follower.cancel()

    def abort(self, rids: Iterable[str]) -> None:
        """End the requests of these ids."""
        for rid in rids:
            if self.batcher is not None:
                self.batcher.cancel(self.running.get(rid, []))

    async def reload(self, path: str) -> None:
        """Let another checkpoint take the model's place; requests that run end with "abort".

        Raises:
            RequestRefusedError: a model is being loaded already, or a request does not end.
        """
        self.ready  # noqa: B018 - refuses with 503
        self.abort(self.running)
        try:
            async with asyncio.timeout(IDLE_LIMIT_S):
                await self.idle.wait()
        except TimeoutError:
            raise RequestRefusedError(f"requests still run after {IDLE_LIMIT_S:g} s", status=503) from None
        assert self.batcher is not None
        self.model, self.next_path = None, path
        self.loaded.clear()
        self.batcher.close()
        await self.loaded.wait()


async def _follow(generation: Generation, queue: asyncio.Queue[Piece]) -> None:
    """Queue a generation's text as it grows, held back where it may be the beginning of a stop string."""
    stream = TextStream(generation.text.decoder, generation.text.skip_special_tokens)
    sent = read = 0
    while generation.finish is None:
        await generation.news.wait()
        generation.news.clear()
        for token in generation.output[read : generation.visible]:
            stream.push(token)
            read += 1
        safe = len(stream.text) - held_back(stream.text, generation.sampling.stop)
        if safe > sent and generation.finish is None:
            queue.put_nowait(Piece(generation, stream.text[sent:safe]))
            sent = safe
    queue.put_nowait(Piece(generation, generation.answer()[sent:], last=True))


def raise_for_errors(generations: Iterable[Generation]) -> None:
    """Raise the first generation's error as a 500."""
    for generation in generations:
        if generation.finish is not None and generation.finish.kind == "error":
            raise RequestRefusedError(generation.finish.message, status=500)


async def read_json(request: web.Request) -> Any:
    """The body as JSON."""
    try:
        return await request.json()
    except ValueError as e:
        raise RequestRefusedError(f"the body is no JSON: {e}") from e
