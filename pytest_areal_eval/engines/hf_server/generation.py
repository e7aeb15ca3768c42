"""One sequence that is generated: its settings, what it has so far, and how it ended.

Invariant: the batcher's thread alone appends to a generation; the event loop reads it after it was delivered.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from pytest_areal_eval.engines.hf_server.text import TextStream, first_stop


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How one generation samples.

    Attributes:
        max_new_tokens: most tokens to generate, the stop token included.
        min_new_tokens: no stop token and no stop string counts before that many.
        temperature: 0.0 is greedy.
        top_p: smallest set of most likely tokens with at least this mass.
        top_k: that many most likely tokens; 0 for all.
        frequency_penalty: taken off a token's logit for each time that the answer has it already.
        presence_penalty: taken off once a token is in the answer.
        stop: strings that end the generation; the text ends before them.
        stop_ids: tokens that end it.
        seed: decides the draws; None draws a fresh one.
        logprobs: whether to keep each token's log-probability (of the model's own distribution, at temperature 1).
        skip_special_tokens: leave special tokens out of the text.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    seed: int | None = None
    logprobs: bool = False
    skip_special_tokens: bool = True

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far change the next logits."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


@dataclass(frozen=True)
class Finish:
    """Why a generation ended; ``matched`` is the stop token or the stop string, ``message`` an error's."""

    kind: Literal["stop", "length", "abort", "error"]
    matched: int | str | None = None
    message: str = ""


@dataclass(eq=False)
class Generation:
    """One sequence.

    Attributes:
        rid: the request's id.
        prompt: token ids.
        sampling: its settings.
        text: the answer's text as it grows; only kept where stop strings are looked for.
        index: tells the ``n`` answers to one request apart.
        streamed: each token is delivered, not only the end.
        output: generated ids, the stop token included.
        logprobs: one for each of them, where asked for.
        finish: why it ended; None while it runs.
        cancelled: it shall end before the next step.
        visible: tokens that a stream may show; set once a step is over, when it is known that they stay.
        news: set in the event loop when there is something new.
    """

    rid: str
    prompt: list[int]
    sampling: Sampling
    text: TextStream
    index: int = 0
    streamed: bool = False
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    cancelled: bool = False
    visible: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        seed = self.sampling.seed
        self._random = Random() if seed is None else Random(f"{seed}/{self.index}")

    @property
    def last_token(self) -> int:
        """The token that the model reads next."""
        return self.output[-1] if self.output else self.prompt[-1]

    def draw(self) -> float:
        """The next uniform number in [0, 1): a function of the seed, the index and the number of draws before."""
        return self._random.random()

    def accept(self, token: int, logprob: float | None) -> None:
        """Append a token and decide whether it was the last."""
        if logprob is not None:
            self.logprobs.append(logprob)
        self.output.append(token)
        sampling, count = self.sampling, len(self.output)
        if token in sampling.stop_ids and count >= sampling.min_new_tokens:
            self.finish = Finish("stop", token)
            return
        if sampling.stop:
            self.text.push(token)
            if count >= sampling.min_new_tokens and (found := first_stop(self.text.text, sampling.stop)):
                self.finish = Finish("stop", found.string)
                return
        if count >= sampling.max_new_tokens:
            self.finish = Finish("length")

    def answer(self) -> str:
        """The text without the stop token or string."""
        ids = self.output
        if self.finish is not None and isinstance(self.finish.matched, int):
            ids = ids[:-1]
        text = self.text.decode(ids)
        found = first_stop(text, self.sampling.stop) if self.sampling.stop else None
        return text[: found.start] if found else text
