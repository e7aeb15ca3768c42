"""What the page's script reads: an index of all items, and the episodes' texts in chunks that are opened on demand.

Everything is JSON, deflated and in base64, so that no text of a model can end a script or be one.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.options.models import natural
from pytest_areal_eval.report.export.html.charts import charts
from pytest_areal_eval.report.saved import SavedEvaluation
from pytest_areal_eval.report.text import answer_of, printable
from pytest_areal_eval.report.transcript import Turn, turns_of

CHUNK_ITEMS = 32
"""Items whose texts are opened together: a click decompresses about half a megabyte at 8 episodes of 2 kB."""
ALL_TEXTS_CHARS = 120_000_000
"""Deflated and in base64 these are about 55 MB of file."""
LONGEST_TEXT_CHARS = 200_000
SHORTEST_LIMIT_CHARS = 1_000


def pack(value: Any) -> str:
    """JSON, deflated, in base64."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 6)).decode()


def text_limit(evaluations: Sequence[SavedEvaluation]) -> int:
    """Characters of one text that are shown, so that the file stays one that a browser opens (C101).

    It is the largest limit at which all texts together keep to ``ALL_TEXTS_CHARS``: only the longest ones are cut.
    """
    episodes = [e for evaluation in evaluations for group in evaluation.episodes.values() for e in group]
    lengths = sorted(len(text) for e in episodes for text in _long_texts(e))
    left = ALL_TEXTS_CHARS
    for place, length in enumerate(lengths):
        share = left // (len(lengths) - place)
        if length > share:
            return min(max(share, SHORTEST_LIMIT_CHARS), LONGEST_TEXT_CHARS)
        left -= length
    return LONGEST_TEXT_CHARS


def _long_texts(e: Episode) -> Iterator[str]:
    yield e.completion
    yield e.reasoning
    for turn in turns_of(e):
        yield turn.text
        yield turn.reasoning


def ordered(evaluation: SavedEvaluation) -> list[str]:
    """The items' ids in dataset order where it is known, else with numbers in order."""
    if all(item_id in evaluation.items for item_id in evaluation.episodes):
        return [item_id for item_id in evaluation.items if item_id in evaluation.episodes]
    return sorted(evaluation.episodes, key=natural)


def index(evaluation: SavedEvaluation) -> dict[str, Any]:
    """What the table of items and the charts show."""
    ids = ordered(evaluation)
    groups = [evaluation.episodes[item_id] for item_id in ids]
    worst = [min(group, key=_badness) for group in groups]
    return {
        "name": evaluation.name,
        "setup": printable(evaluation.setup),
        "k": evaluation.row.n_samples,
        "passMark": evaluation.row.pass_mark,
        "ids": ids,
        "reward": [round(_mean([e.counted_reward for e in group]), 6) for group in groups],
        "rewards": [[None if e.reward is None else round(e.reward, 6) for e in group] for group in groups],
        "status": [e.status.value for e in worst],
        "answer": [answer_of(e, 80) for e in worst],
        "gold": [next((e.gold[:80] for e in group if e.gold), "") for group in groups],
        "tokens": [round(_mean([e.output_tokens for e in group]), 1) for group in groups],
        "latency": [round(max(e.latency_s for e in group), 3) for group in groups],
        "columns": columns(evaluation, ids),
        "charts": charts(evaluation, ids),
    }


def columns(evaluation: SavedEvaluation, ids: Sequence[str]) -> dict[str, list[Any]]:
    """The dataset's short columns, item by item."""
    names = dict.fromkeys(name for i in ids if i in evaluation.items for name in evaluation.items[i].columns)
    return {
        name: [evaluation.items[i].columns.get(name) if i in evaluation.items else None for i in ids] for name in names
    }


def chunks(evaluation: SavedEvaluation, limit: int) -> Iterator[list[dict[str, Any]]]:
    """The items' texts in the order of the index, ``CHUNK_ITEMS`` at a time."""
    ids = ordered(evaluation)
    for start in range(0, len(ids), CHUNK_ITEMS):
        yield [_texts(evaluation.episodes[item_id], limit) for item_id in ids[start : start + CHUNK_ITEMS]]


def _texts(episodes: Sequence[Episode], limit: int) -> dict[str, Any]:
    shared = episodes[0].prompt
    return {
        "prompt": shorten(shared, limit),
        "episodes": [
            _episode(e, limit) | ({"prompt": shorten(e.prompt, limit)} if e.prompt != shared else {}) for e in episodes
        ],
    }


def _episode(e: Episode, limit: int) -> dict[str, Any]:
    """One episode; what is empty is left out."""
    thinking, _, answer = e.completion.rpartition("</think>")
    values = {
        "status": e.status.value,
        "reward": e.reward,
        "reasoning": shorten(e.reasoning or thinking.removeprefix("<think>").strip(), limit),
        "completion": shorten(answer.lstrip("\n") if thinking else e.completion, limit),
        "extracted": e.extracted and shorten(e.extracted, limit),
        "gold": e.gold and shorten(e.gold, limit),
        "stop": e.stop_reason,
        "input": e.input_tokens,
        "output": e.output_tokens,
        "requests": e.requests if e.requests > 1 else 0,
        "attempts": e.attempts if e.attempts > e.requests else 0,
        "latency": round(e.latency_s, 3),
        "replica": e.replica,
        "seed": e.seed,
        "error": shorten(e.error, limit),
        "traceback": shorten(e.traceback, limit),
        "metrics": dict(e.metrics),
        "turns": [_turn(turn, limit) for turn in turns_of(e)],
    }
    return {
        name: value
        for name, value in values.items()
        if value not in ("", None, {}, []) and (value != 0 or name == "reward")
    }


def _turn(turn: Turn, limit: int) -> dict[str, Any]:
    values = {
        "role": turn.role,
        "text": shorten(turn.text, limit),
        "reasoning": shorten(turn.reasoning, limit),
        "calls": [f"{call.name}({shorten(call.arguments, limit)})" for call in turn.calls],
        "cost": turn.cost,
    }
    return {name: value for name, value in values.items() if value}


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of a text that is too long, and say so."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {left_out:,} characters are left out here; the journal has them ...]\n{text[-half:]}"


def _badness(episode: Episode) -> tuple[float, bool]:
    """Errors first, then the lowest reward."""
    return (-1.0 if episode.reward is None else episode.reward, episode.status.kind == "scored")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
