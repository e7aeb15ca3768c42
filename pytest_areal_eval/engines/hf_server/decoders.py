"""What runs the model for a batch of rows: one forward per step, with each row's past in a cache.

``SlotDecoder`` keeps all rows' keys and values in preallocated buffers and runs every row in one forward.
``RowDecoder`` runs each row alone with a cache of transformers' own, for models that the first cannot serve.
Invariant: rows 0..n-1 are in use, row i has read all tokens that it was given, and no row sees another's past.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from pytest_areal_eval.engines.hf_server.cache import SlotCache
from pytest_areal_eval.engines.hf_server.lean import FAMILY, LeanForward

PREFILL_TOKENS = 8192


Forward = Callable[..., Tensor]
"""``(input_ids=, position_ids=, attention_mask=, cache=) -> logits of the last position``, float32."""


@dataclass(frozen=True)
class Window:
    """Sliding attention: a token sees the last ``size`` ones.

    ``by_kind``: some layers slide and others do not, so the model takes a mask for each kind of layer.
    """

    size: int
    by_kind: bool


class Decoder(Protocol):
    """Runs the model for rows 0..n-1."""

    name: str

    def admit(self, prompts: Sequence[Sequence[int]]) -> None:
        """Append a row for each prompt; each has read all of its prompt's tokens but the last."""
        ...

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Let each row read one token; returns the logits that follow, ``[rows, vocabulary]`` in float32."""
        ...

    def drop(self, row: int) -> None:
        """Remove a row; the last row takes its number."""
        ...

    def clear(self) -> None:
        """Remove all rows."""
        ...


def bind(model: Any) -> Forward:
    """The model's forward as ``(cache=..., **inputs) -> logits of the last position``, whatever it calls its cache."""
    accepted = inspect.signature(model.forward).parameters
    name = next((n for n in ("cache", "past_key_values", "cache_params") if n in accepted), "past_key_values")
    extra: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def forward(*, cache: Any, **inputs: Tensor) -> Tensor:
        output = model(**inputs, **{name: cache}, use_cache=True, return_dict=True, **extra)
        logits: Tensor = output.logits[:, -1].float()
        return logits

    return forward


class SlotDecoder:
    """All rows in one forward.  Serves models with full or sliding attention that take a mask in four dimensions.

    Args:
        model: for its device and its type of numbers.
        rows: most rows at once.
        forward: what :func:`bind` returns, or a faster equivalent.
        window: how far back the model's sliding layers see, if it has any.
        name: which of them, for ``/model_info``.
    """

    def __init__(
        self, model: Any, rows: int, forward: Forward, window: Window | None = None, name: str = "slots"
    ) -> None:
        self._forward, self._window, self.name = forward, window, name
        self._device, self._dtype = model.device, model.dtype
        self._cache = SlotCache(rows)
        self._prompts: list[tuple[int, ...]] = []
        self._lengths: list[int] = []
        self._rows = torch.arange(rows, device=self._device)

    def admit(self, prompts: Sequence[Sequence[int]]) -> None:
        """Read the prompts; one that another row also had (``n`` samples of an item) is copied, not computed."""
        self._cache.reserve(max(map(len, prompts)))
        known = {prompt: row for row, prompt in enumerate(self._prompts)}
        fresh: list[int] = []
        copies: list[tuple[int, int]] = []
        for prompt in map(tuple, prompts):
            row = len(self._prompts)
            if prompt in known:
                copies.append((known[prompt], row))
            elif len(prompt) > 1:
                fresh.append(row)
            known.setdefault(prompt, row)
            self._prompts.append(prompt)
            self._lengths.append(len(prompt) - 1)
        for group in _of_similar_length(fresh, self._lengths):
            self._prefill(group)
        for source, target in copies:
            self._cache.copy_row(source, target, self._lengths[target])

    def _prefill(self, rows: Sequence[int]) -> None:
        """One forward over several prompts, padded on the right: causal attention keeps the padding out of sight."""
        size = max(self._lengths[row] for row in rows)
        ids = torch.tensor([list(self._prompts[row][:-1]) + [0] * (size - self._lengths[row]) for row in rows])
        positions = torch.arange(size, device=self._device).expand(len(rows), size)
        self._cache.begin_prefill(torch.tensor(rows, device=self._device))
        self._forward(input_ids=ids.to(self._device), position_ids=positions, cache=self._cache)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """One forward over all rows; each sees its own columns up to its own position."""
        rows, columns = len(tokens), max(self._lengths) + 1
        self._cache.reserve(columns)
        positions = torch.tensor(self._lengths, device=self._device)
        self._cache.begin_step(rows, columns, self._rows[:rows] * self._cache.columns + positions)
        logits = self._forward(
            input_ids=torch.tensor(tokens, device=self._device)[:, None],
            position_ids=positions[:, None],
            attention_mask=self._mask(positions[:, None], columns),
            cache=self._cache,
        )
        self._lengths = [length + 1 for length in self._lengths]
        return logits

    def _mask(self, positions: Tensor, columns: int) -> Tensor | dict[str, Tensor]:
        """What is added to the attention scores, ``[rows, 1, 1, columns]``; one for each kind of layer if need be."""
        column = torch.arange(columns, device=self._device)
        full = torch.zeros(len(positions), columns, dtype=self._dtype, device=self._device)
        full.masked_fill_(column > positions, -torch.inf)
        if self._window is None:
            return full[:, None, None, :]
        sliding = full.masked_fill(column <= positions - self._window.size, -torch.inf)[:, None, None, :]
        if not self._window.by_kind:
            return sliding
        return {"full_attention": full[:, None, None, :], "sliding_attention": sliding}

    def drop(self, row: int) -> None:
        """Remove a row; the last row moves into its place."""
        length, prompt = self._lengths.pop(), self._prompts.pop()
        if row < len(self._lengths):
            self._cache.copy_row(len(self._lengths), row, length)
            self._lengths[row], self._prompts[row] = length, prompt

    def clear(self) -> None:
        """Remove all rows and give the buffers back."""
        self._prompts, self._lengths = [], []
        self._cache = SlotCache(self._cache.rows)


def _of_similar_length(rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Rows grouped so that padding stays under a half and a forward under ``PREFILL_TOKENS`` tokens."""
    groups: list[list[int]] = []
    for row in sorted(rows, key=lambda r: lengths[r]):
        group = groups[-1] if groups else []
        fits = group and (len(group) + 1) * lengths[row] <= PREFILL_TOKENS
        if fits and lengths[row] <= 1.5 * lengths[group[0]]:
            group.append(row)
        else:
            groups.append([row])
    return groups


class RowDecoder:
    """Each row alone, with transformers' own cache: right for any causal model, without the gain of a batch."""

    name = "rows"

    def __init__(self, model: Any) -> None:
        self._model, self._forward = model, bind(model)
        self._caches: list[Any] = []

    def admit(self, prompts: Sequence[Sequence[int]]) -> None:
        """Read each prompt into a cache of its own."""
        for prompt in prompts:
            self._caches.append(DynamicCache(config=self._model.config))
            if len(prompt) > 1:
                self._read(self._caches[-1], prompt[:-1])

    def step(self, tokens: Sequence[int]) -> Tensor:
        """One forward for each row."""
        return torch.cat([self._read(c, [t]) for c, t in zip(self._caches, tokens, strict=True)])

    def _read(self, cache: Any, tokens: Sequence[int]) -> Tensor:
        return self._forward(input_ids=torch.tensor([list(tokens)], device=self._model.device), cache=cache)

    def drop(self, row: int) -> None:
        """Remove a row."""
        last = self._caches.pop()
        if row < len(self._caches):
            self._caches[row] = last

    def clear(self) -> None:
        """Remove all rows."""
        self._caches = []


def pick_decoder(model: Any, rows: int, context_length: int) -> tuple[Decoder, str]:
    """The fastest decoder that gives the model's own logits, tried out on two short prompts.

    Returns:
        The decoder, and why it is not the batched one (empty where it is).
    """
    window, why = _attention(model.config.get_text_config(), context_length)
    if not why:
        for name, forward in _forwards(model, window):
            slots = SlotDecoder(model, max(rows, 2), forward, window, name)  # the trial has two rows
            why = _disagreement(slots, model)
            if not why:
                return slots, ""
    alone = RowDecoder(model)
    if problem := _disagreement(alone, model):
        raise ValueError(f"its logits with a cache differ from those without one ({problem})")
    return alone, why


def _forwards(model: Any, window: Window | None) -> Iterator[tuple[str, Forward]]:
    """What can run a batch, the fastest first."""
    if model.config.model_type in FAMILY and window is None:
        yield "lean", LeanForward(model)
    yield "slots", bind(model)


def _attention(config: Any, context_length: int) -> tuple[Window | None, str]:
    """The window of a model's attention, and why its attention has no place in slots (empty where it has)."""
    size = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if others := sorted(kinds - {"full_attention", "sliding_attention"}):
        return None, f"layers of kind {', '.join(others)}"
    slides = "sliding_attention" in kinds or (not kinds and size is not None)
    if not slides or size is None or size >= context_length:
        return None, ""
    return Window(size, by_kind=bool(kinds)), ""


def _disagreement(decoder: Decoder, model: Any) -> str:
    """How a decoder's logits differ from a plain forward's on two prompts of different length; empty if they do not."""
    size = model.get_input_embeddings().weight.shape[0]
    prompts = [[token % size for token in range(first, first + 3 + row * 4)] for row, first in enumerate((11, 31))]
    tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
    try:
        decoder.admit(prompts)
        for token in (None, 7, 5):
            if token is not None:
                prompts = [[*prompt, token % size] for prompt in prompts]
            got = decoder.step([prompt[-1] for prompt in prompts])
            for row, prompt in enumerate(prompts):
                ids = torch.tensor([prompt], device=model.device)
                expected = model(input_ids=ids, use_cache=False).logits[0, -1].float()
                error = float((got[row] - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
                if not error <= tolerance:
                    return f"relative error {error:.2g} on row {row} of a trial batch"
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError, NotImplementedError) as e:
        return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
    finally:
        decoder.clear()
    return ""
