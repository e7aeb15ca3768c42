"""From a batch's logits to its next tokens, vectorised over the rows.

Invariant: a row's token depends on its own logits, its own settings and its own uniform draw alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_areal_eval.engines.hf_server.generation import Generation


class Choice(NamedTuple):
    """Next tokens, -1 for a row whose logits are not numbers, and log-probabilities where any row wants them."""

    tokens: list[int]
    logprobs: list[float | None]


def choose(logits: Tensor, rows: Sequence[Generation]) -> Choice:
    """Choose each row's next token.

    Args:
        logits: shape ``[rows, vocabulary]``, float32; changed in place.
        rows: one generation for each row.
    """
    raw = torch.log_softmax(logits, dim=-1) if any(g.sampling.logprobs for g in rows) else None
    _penalise(logits, rows)
    _forbid_stops(logits, rows)
    best, tokens = logits.max(dim=-1)
    sampled = [i for i, g in enumerate(rows) if g.sampling.temperature > 0.0]
    if sampled:
        index = torch.tensor(sampled, device=logits.device)
        tokens[index] = draw(logits[index], [rows[i] for i in sampled])
    broken = ~torch.isfinite(best)
    logprobs: list[float | None] = [None] * len(rows)
    if raw is not None:
        chosen = raw.gather(1, tokens[:, None])[:, 0].tolist()
        logprobs = [value if g.sampling.logprobs else None for value, g in zip(chosen, rows, strict=True)]
    return Choice(tokens.masked_fill(broken, -1).tolist(), logprobs)


def draw(logits: Tensor, rows: Sequence[Generation]) -> Tensor:
    """Draw one token for each row by inverting its cumulative distribution at the row's uniform number.

    One number a row instead of one for each token (the Gumbel way) makes the draw independent of the batch and
    costs nothing with a vocabulary of 150,000.

    Args:
        logits: shape ``[rows, vocabulary]``.
        rows: generations with a temperature above 0.

    Returns:
        Token ids, shape ``[rows]``.
    """
    device = logits.device
    logits = logits / torch.tensor([g.sampling.temperature for g in rows], device=device)[:, None]
    order = None
    if any(g.sampling.top_k or g.sampling.top_p < 1.0 for g in rows):
        logits, order = logits.sort(dim=-1, descending=True, stable=True)
        logits = _keep_top(logits, rows)
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    uniform = torch.tensor([g.draw() for g in rows], dtype=torch.float64, device=device)[:, None]
    # right=True finds the first entry above the target: never one of probability 0.
    picked = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    picked.clamp_(max=logits.shape[-1] - 1)
    return (picked if order is None else order.gather(1, picked))[:, 0]


def _keep_top(descending: Tensor, rows: Sequence[Generation]) -> Tensor:
    """Top-k, then top-p over what is left; the most likely token always stays."""
    device, size = descending.device, descending.shape[-1]
    top_k = torch.tensor([g.sampling.top_k or size for g in rows], device=device)[:, None]
    ranks = torch.arange(size, device=device)
    descending = descending.masked_fill(ranks >= top_k, -torch.inf)
    probabilities = descending.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    top_p = torch.tensor([g.sampling.top_p for g in rows], device=device)[:, None]
    cut = (before >= top_p) & (top_p < 1.0)
    cut[:, 0] = False
    return descending.masked_fill(cut, -torch.inf)


def _penalise(logits: Tensor, rows: Sequence[Generation]) -> None:
    """OpenAI's frequency and presence penalties over the tokens generated so far."""
    for i, g in enumerate(rows):
        if g.sampling.penalised and g.output:
            seen, counts = torch.unique(torch.tensor(g.output, device=logits.device), return_counts=True)
            logits[i, seen] -= g.sampling.frequency_penalty * counts + g.sampling.presence_penalty


def _forbid_stops(logits: Tensor, rows: Sequence[Generation]) -> None:
    """No stop token before ``min_new_tokens`` tokens, as transformers' MinNewTokensLengthLogitsProcessor."""
    for i, g in enumerate(rows):
        # The token chosen now is number len(output) + 1, and a stop may be number min_new_tokens + 1.
        if len(g.output) < g.sampling.min_new_tokens:
            logits[i, [token for token in g.sampling.stop_ids if token < logits.shape[-1]]] = -torch.inf
