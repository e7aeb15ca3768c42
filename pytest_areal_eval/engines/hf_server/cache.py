"""Keys and values of many rows in preallocated buffers, behind the interface that transformers' models call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

FIRST_COLUMNS = 256


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
