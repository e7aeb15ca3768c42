"""The replay engine: answers come from a file, so that completions made elsewhere can be scored with no model at all.

A row is a JSON object with ``id`` (the item's id) or ``index`` (its row in the dataset, from 0), and the text under
``completion``, ``completions`` (a list), ``response``, ``output`` or ``text``; ``finish_reason`` (``stop``, ``length``)
and ``evaluation`` are optional.  Several rows of one item are its episodes, in the order of the file.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import ModelRequest, ModelResponse, StopReason
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, Launch
from pytest_areal_eval.errors import DatasetError, RequestError
from pytest_areal_eval.workflows import context

TEXT_KEYS = ("completion", "completions", "response", "output", "text")
Key = tuple[str, str | int]


@dataclass(frozen=True)
class Recorded:
    """One recorded answer."""

    text: str
    stop_reason: StopReason = "stop"


class ReplayEngine:
    """An :class:`~pytest_areal_eval.engines.base.Engine` that looks answers up.

    Args:
        path: the JSONL file.

    Raises:
        DatasetError: the file is missing or a row is malformed; the message names the line.
    """

    name = "replay"
    replicas = 1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = EngineInfo(concurrency=256, model=f"replay of {path.name}")
        self._rows: dict[Key, list[Recorded]] = defaultdict(list)
        for key, recorded in _read(path):
            self._rows[key] += recorded
        self._answers: dict[tuple[str, str], list[Recorded]] = {}

    def register(self, evaluation: str, item_id: str, index: int, record_id: object = None) -> int:
        """Tie an item to its recorded completions; returns how many there are.

        Args:
            evaluation: rows that name it go before rows that name none.
            item_id: its id as a test.
            index: its row in the dataset, where no row has its id.
            record_id: its id in the dataset, where it has one; a test's id has fewer characters to choose from.
        """
        names: list[str | int] = [item_id, index] if record_id is None else [str(record_id), item_id, index]
        keys = [(named, name) for name in names for named in (evaluation, "")]
        found = next((self._rows[key] for key in keys if key in self._rows), [])
        self._answers[evaluation, item_id] = found
        return len(found)

    def launch(self, name: str, token: str) -> Launch | None:
        """Nothing to start."""
        return None

    async def discover(self, endpoint: Endpoint, http: Any) -> EngineInfo:
        """What is known already."""
        return self.info

    async def generate(self, request: ModelRequest, endpoint: Endpoint | None, http: Any) -> ModelResponse:
        """The recorded answer of the running episode."""
        episode = context.get()
        recorded = self._answers.get((episode.evaluation, episode.item_id), [])
        if episode.episode_index >= len(recorded):
            raise RequestError(f"{self.path.name} has no completion {episode.episode_index} for item {episode.item_id}")
        answer = recorded[episode.episode_index]
        return ModelResponse(
            input_tokens=list(request.input_ids),
            text=answer.text,
            stop_reason=answer.stop_reason,
            latency=0.0,
            ttft=0.0,
        )

    async def abort(self, request: ModelRequest, endpoint: Endpoint | None, http: Any) -> None:
        """Nothing to free."""


def check_readable(path: Path) -> None:
    """Find out before anything starts whether recorded answers can be read.

    Raises:
        DatasetError: they cannot.
    """
    try:
        path.open("rb").close()
    except OSError as error:
        raise DatasetError(f"--replay={path}: cannot be read: {error.strerror}") from error


def _read(path: Path) -> Iterator[tuple[Key, list[Recorded]]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise DatasetError(f"--replay={path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"--replay={path}: is no text: {error}", "Give a JSONL file, encoded in UTF-8.") from error
    rows = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _row(line, f"--replay={path}:{number}")
            rows += 1
    if not rows:
        raise DatasetError(f"--replay={path}: no completions there")


def _row(line: str, where: str) -> tuple[Key, list[Recorded]]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DatasetError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DatasetError(f"{where}: not a JSON object")
    name = next((key for key in ("id", "item_id", "index") if row.get(key) is not None), None)
    column = next((key for key in TEXT_KEYS if key in row), None)
    if name is None or column is None:
        missing = "id or index" if name is None else f"completion (one of {', '.join(TEXT_KEYS)})"
        raise DatasetError(f"{where}: no {missing}; the row has: {', '.join(map(str, row))}")
    identity = row[name]
    if name == "index" and (isinstance(identity, bool) or not isinstance(identity, int)):
        raise DatasetError(f"{where}: index {identity!r} is not a whole number")
    key: Key = (str(row.get("evaluation") or ""), identity if name == "index" else str(identity))
    texts = row[column] if isinstance(row[column], list) else [row[column]]
    if not all(text is None or isinstance(text, str) for text in texts):
        raise DatasetError(f"{where}: {column} is neither a string nor a list of strings")
    return key, [Recorded(text or "", _stop_reason(row)) for text in texts]


def _stop_reason(row: Mapping[str, Any]) -> StopReason:
    return "length" if (row.get("finish_reason") or row.get("stop_reason")) == "length" else "stop"
