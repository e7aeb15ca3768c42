"""What runs the model for a batch of rows: one forward per step, with each row's past in a cache.

``SlotDecoder`` keeps all rows' keys and values in preallocated buffers and runs every row in one forward.
``RowDecoder`` runs each row alone with a cache of transformers' own, for models that the first cannot serve.
Invariant: rows 0..n-1 are in use, row i has read all tokens that it was given, and no row sees another's past.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from pytest_areal_eval.engines.hf_server.lean import FAMILY, LeanForward

FIRST_COLUMNS = 256
PREFILL_TOKENS = 8192


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


def bind(model: Any) -> Callable[..., Tensor]:
    """The model's forward as ``(cache=..., **inputs) -> logits of the last position``, whatever it calls its cache."""
    accepted = inspect.signature(model.forward).parameters
    name = next((n for n in ("cache", "past_key_values", "cache_params") if n in accepted), "past_key_values")
    extra: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def forward(*, cache: Any, **inputs: Tensor) -> Tensor:
        output = model(**inputs, **{name: cache}, use_cache=True, return_dict=True, **extra)
        logits: Tensor = output.logits[:, -1].float()
        return logits

    return forward


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values of all rows: for each layer one buffer ``[rows, columns, heads, head size]`` of each.

    A row's tokens lie in columns 0, 1, 2, ... of its row, so a token's key is written where it belongs and nothing is
    ever moved or concatenated when rows of different lengths share a step.
    """

    is_compileable = False
    is_sliding = is_linear = is_dummy = (False,)

    def __init__(self, rows: int) -> None:
        self.rows, self.columns = rows, FIRST_COLUMNS
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._write = torch.empty(0, dtype=torch.long)
        self._targets: Tensor | None = None
        self._shape = (0, 0)

    def begin_prefill(self, rows: Tensor) -> None:
        """The next forward reads whole prompts into ``rows``."""
        self._targets, self._shape = rows, (len(rows), 0)

    def begin_step(self, rows: int, columns: int, write: Tensor) -> None:
        """The next forward reads one token for each of ``rows``, written at the flat index ``write``."""
        self._targets, self._write, self._shape = None, write, (rows, columns)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values; returns what its attention reads, ``[rows, heads, columns, size]``."""
        pair = self.buffers.get(layer_idx) or self._allocate(keys, values, layer_idx)
        if self._targets is not None:
            for buffer, new in zip(pair, (keys, values), strict=True):
                buffer[self._targets, : new.shape[2]] = new.transpose(1, 2)
            return keys, values
        rows, columns = self._shape
        for buffer, new in zip(pair, (keys, values), strict=True):
            buffer.view(-1, *buffer.shape[2:]).index_copy_(0, self._write, new.squeeze(2))
        return pair[0][:rows, :columns].transpose(1, 2), pair[1][:rows, :columns].transpose(1, 2)

    def _allocate(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        first, second = (new.new_zeros(self.rows, self.columns, new.shape[1], new.shape[3]) for new in (keys, values))
        self.buffers[layer] = first, second
        return first, second

    def reserve(self, columns: int) -> None:
        """Make room for rows of ``columns`` tokens: at least twice the room each time, so growing stays cheap."""
        if columns <= self.columns:
            return
        self.columns = max(columns, 2 * self.columns)
        for layer, pair in self.buffers.items():
            first, second = (torch.nn.functional.pad(b, (0, 0, 0, 0, 0, self.columns - b.shape[1])) for b in pair)
            self.buffers[layer] = first, second

    def copy_row(self, source: int, target: int, columns: int) -> None:
        """Copy a row's first columns to another row."""
        for pair in self.buffers.values():
            for buffer in pair:
                buffer[target, :columns] = buffer[source, :columns]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before the ones of the next forward."""
        return max(self._shape[1] - 1, 0)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Position of the next forward's first token."""
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Columns that attention reads, and the first one's number."""
        return self._shape[1] or query_length, 0


class SlotDecoder:
    """All rows in one forward.  Serves models with full attention whose mask may be given in four dimensions.

    Args:
        model: for its device and its type of numbers.
        rows: most rows at once.
        forward: what :func:`bind` returns, or a faster equivalent.
        name: which of them, for ``/model_info``.
    """

    def __init__(self, model: Any, rows: int, forward: Callable[..., Tensor], name: str = "slots") -> None:
        self._forward, self.name = forward, name
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
        unseen = torch.arange(columns, device=self._device) > positions[:, None]
        mask = torch.zeros(rows, columns, dtype=self._dtype, device=self._device).masked_fill_(unseen, -torch.inf)
        logits = self._forward(
            input_ids=torch.tensor(tokens, device=self._device)[:, None],
            position_ids=positions[:, None],
            attention_mask=mask[:, None, None, :],
            cache=self._cache,
        )
        self._lengths = [length + 1 for length in self._lengths]
        return logits

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
    why = _unusual_attention(model.config.get_text_config(), context_length)
    if not why:
        for name, forward in _forwards(model):
            slots = SlotDecoder(model, rows, forward, name)
            why = _disagreement(slots, model)
            if not why:
                return slots, ""
    alone = RowDecoder(model)
    if problem := _disagreement(alone, model):
        raise ValueError(f"its logits with a cache differ from those without one ({problem})")
    return alone, why


def _forwards(model: Any) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """What can run a batch, the fastest first."""
    if model.config.model_type in FAMILY:
        yield "lean", LeanForward(model)
    yield "slots", bind(model)


def _unusual_attention(config: Any, context_length: int) -> str:
    """Why attention is not full over the whole context; empty where it is."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    if "sliding_attention" in kinds and window and window >= context_length:
        kinds.discard("sliding_attention")
    others = sorted(kinds - {"full_attention"})
    return f"layers of kind {', '.join(others)}" if others else ""


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
