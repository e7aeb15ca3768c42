"""Continuous batching: one thread owns the model, and every step runs all active sequences.

A finished sequence's row goes at once to the next that waits.  Invariant: row i of the decoder is ``_active[i]``, and
each generation that was submitted is delivered finished exactly once, whatever happens to the model.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch

from pytest_areal_eval.engines.hf_server.decoders import Decoder
from pytest_areal_eval.engines.hf_server.generation import Finish, Generation
from pytest_areal_eval.engines.hf_server.sampling import choose

Deliver = Callable[[list[Generation]], None]
"""Tells the event loop that generations have news; called from the batcher's thread."""


class Batcher:
    """The loop around a decoder.

    Args:
        decoder: runs the model.
        rows: most sequences at once.
        deliver: called after a step with the generations that finished in it, and with the streamed ones.
    """

    def __init__(self, decoder: Decoder, rows: int, deliver: Deliver) -> None:
        self._decoder, self._rows, self._deliver = decoder, rows, deliver
        self._active: list[Generation] = []
        self._waiting: deque[Generation] = deque()
        self._wake = threading.Condition()
        self._closed = False

    def submit(self, generations: Sequence[Generation]) -> None:
        """Queue generations; returns at once."""
        with self._wake:
            self._waiting.extend(generations)
            self._wake.notify()

    def cancel(self, generations: Sequence[Generation]) -> None:
        """End generations with what they have; their rows are free before the next step."""
        with self._wake:
            for generation in generations:
                generation.cancelled = True
            self._wake.notify()

    def close(self) -> None:
        """Let ``run`` return after the step that it is in."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    @property
    def load(self) -> tuple[int, int]:
        """Sequences that run and that wait."""
        return len(self._active), len(self._waiting)

    def run(self) -> None:
        """Serve until closed.  A failing step ends the sequences in it with an error and the rest goes on."""
        with torch.inference_mode():
            while (arrived := self._next()) is not None:
                try:
                    self._admit(arrived)
                    news = self._step() if self._active else []
                except (RuntimeError, ValueError, IndexError, TypeError) as e:  # out of memory is a RuntimeError
                    news = self._fail(f"the model's forward failed: {type(e).__name__}: {e}")
                if news:
                    self._deliver(news)

    def _next(self) -> list[Generation] | None:
        """Wait for work; the generations that get a row now, or None once closed."""
        with self._wake:
            while not (self._closed or self._waiting or self._active):
                self._wake.wait()
            if self._closed:
                return None
            arrived: list[Generation] = []
            self._retire_cancelled()
            while self._waiting and len(self._active) + len(arrived) < self._rows:
                arrived.append(self._waiting.popleft())
            return arrived

    def _retire_cancelled(self) -> None:
        gone = [g for g in (*self._active, *self._waiting) if g.cancelled]
        if not gone:
            return
        for row in reversed(range(len(self._active))):
            if self._active[row].cancelled:
                self._drop(row)
        self._waiting = deque(g for g in self._waiting if not g.cancelled)
        for generation in gone:
            generation.finish = Finish("abort", message="Aborted")
        self._deliver(gone)

    def _admit(self, arrived: list[Generation]) -> None:
        if arrived:
            self._active += arrived
            self._decoder.admit([g.prompt for g in arrived])

    def _step(self) -> list[Generation]:
        """One token for every active sequence; the generations with news."""
        active = self._active
        tokens, logprobs = choose(self._decoder.step([g.last_token for g in active]), active)
        for generation, token, logprob in zip(active, tokens, logprobs, strict=True):
            if token < 0:
                generation.finish = Finish("error", message="the model's logits are NaN or infinite")
            else:
                generation.accept(token, logprob)
            if generation.finish is None:
                generation.visible = len(generation.output)
        news = [g for g in active if g.finish is not None or g.streamed]
        for row in reversed(range(len(active))):
            if active[row].finish is not None:
                self._drop(row)
        return news

    def _drop(self, row: int) -> None:
        self._decoder.drop(row)
        last = self._active.pop()
        if row < len(self._active):
            self._active[row] = last

    def _fail(self, message: str) -> list[Generation]:
        failed, self._active = self._active, []
        self._decoder.clear()
        for generation in failed:
            generation.finish = generation.finish or Finish("error", message=message)
        return failed
