"""An xdist worker's part: it asks the controlling process for the run and its servers, and attaches to them.

They meet in a folder that only this user can read, through files that are written whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_areal_eval.engines.base import Endpoint
from pytest_areal_eval.errors import ArealEvalError, ConfigError, EngineLost, EngineStartError, UserError
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.session.session import SESSION

KEY = "areal_eval"
POLL_S = 0.1
SELECTED = "selected.json"
"""Says that a worker has selected evaluations."""
REFUSED = "refused.json"
"""What a worker found wrong when it had collected: its owner says it, for a worker's usage error is an internal one."""
LOOK, FOUND = "look.json", "earlier.json"
"""A worker's question for the earlier run that the options name, and the owner's answer."""
NEED, ANSWER = "need.json", "engine.json"
"""What a worker is about to evaluate, and where the run and its servers are."""
FAILED = "failed.json"
"""What ended a worker's session."""
SCOPES: Mapping[str, Callable[[str], str]] = {
    "loadfile": lambda nodeid: nodeid.partition("::")[0],
    "loadscope": lambda nodeid: nodeid.rpartition("::")[0],
}
"""What of a node id is the same for tests that xdist keeps on one worker, by ``--dist`` mode."""


class Worker:
    """A worker's part; a plugin there.

    Every worker collects all tests, and xdist says late which of them a worker runs: with ``loadfile`` and
    ``loadscope`` all that stand together, else only the one at hand and the next.

    Args:
        config: of the worker; has ``workerinput``.
    """

    def __init__(self, config: pytest.Config) -> None:
        given: Mapping[str, Any] = getattr(config, "workerinput", {})[KEY]
        self.folder = Path(given["folder"])
        self.name = str(getattr(config, "workerinput", {})["workerid"])
        self.workers = int(given["workers"])
        self.is_first = self.name == "gw0"
        self.mode = str(given["mode"])
        self._limit_s = float(given["limit_s"])
        self._scope = SCOPES.get(self.mode)
        self._at_hand: pytest.Item | None = None
        self._next: pytest.Item | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Learn which test runs now and which runs next."""
        self._at_hand, self._next = item, nextitem
        if nextitem is not None:
            item.config.stash[SESSION].look_ahead(nextitem)

    def runs(self, item: pytest.Item) -> bool:
        """Whether this worker is known to run a test; what another one runs must not be submitted here."""
        if self._scope is None or self._at_hand is None:
            return item in (self._at_hand, self._next)
        return self._scope(item.nodeid) == self._scope(self._at_hand.nodeid)

    def refuse_mode(self) -> None:
        """Refuse what cannot be right with evaluations, whatever they are.

        Raises:
            ConfigError: ``--dist=each``.
        """
        if self.mode == "each":
            raise ConfigError(
                "--dist=each runs every item on every worker, so each would be scored several times",
                "Use another --dist mode, or none: episodes run concurrently without -n.",
            )

    def has_selected(self) -> None:
        """Let the owner know that there are evaluations."""
        write(self.folder / SELECTED, {})

    def refuse(self, error: UserError) -> None:
        """Let the owner end the session; it hears of it before it hears that this worker has collected."""
        write(self.folder / REFUSED, {"text": str(error)})

    def fail(self, error: ArealEvalError) -> None:
        """Let the owner say what ended this session, whole and once."""
        told = {"kind": type(error).__name__, "text": str(error.args[0]), "hint": error.hint}
        with contextlib.suppress(FileNotFoundError):  # the owner has ended before
            write(self.folder / FAILED, told)

    def ask_for_earlier(self, evaluations: Sequence[str]) -> Path:
        """Where the earlier run is that the options name; the owner holds it where it goes on.

        Raises:
            ConfigError: it cannot be used.
            EngineStartError: the owner did not answer in time.
        """
        answer = self._answer_to(LOOK, {"evaluations": list(evaluations)}, FOUND)
        if "error" in answer:
            raise ConfigError(answer["error"], answer["hint"])
        return Path(answer["run"])

    def ask(self, need: Mapping[str, Any]) -> dict[str, Any]:
        """Say what is evaluated here, and learn from the owner where the run and its servers are.

        Raises:
            EngineStartError: the owner could not start the engine, or did not answer in time.
        """
        answer = self._answer_to(NEED, need, ANSWER)
        if "error" in answer:
            raise EngineStartError(answer["error"], hint=answer["hint"])
        return answer

    def _answer_to(self, note: str, content: Mapping[str, Any], answer: str) -> dict[str, Any]:
        """Leave a note (the first worker's counts; all say the same) and wait for the owner's answer."""
        if not (self.folder / note).exists():
            write(self.folder / note, content)
        end = time.monotonic() + self._limit_s
        while time.monotonic() < end:
            found = read(self.folder / answer)
            if found is not None:
                return found
            if not self.folder.exists():
                break
            time.sleep(POLL_S)
        raise EngineStartError("pytest's controlling process did not say where the engine is")

    def whereabouts(self) -> Callable[[], list[Endpoint]]:
        """What tells where the owner's servers are now.

        It raises EngineLost once the owner says that they will not come back.
        """
        last: list[Endpoint] = []

        def ask() -> list[Endpoint]:
            nonlocal last
            answer = read(self.folder / ANSWER)
            if answer is not None and "error" in answer:
                raise EngineLost(answer["error"], hint=answer["hint"])
            if answer is not None:  # else the owner has ended, and so will this session
                last = [Endpoint(**endpoint) for endpoint in answer["endpoints"]]
            return last

        return ask

    def share(self, concurrency: int | None) -> int | None:
        """This worker's part of ``--max-concurrency``."""
        return None if concurrency is None else math.ceil(concurrency / self.workers)


def row_to_dict(row: Row) -> dict[str, Any]:
    """What the owner must know of a row before any result of it."""
    names = (
        "key",
        "name",
        "evaluation",
        "model",
        "file",
        "n_samples",
        "n_selected",
        "n_planned",
        "n_total",
        "pass_mark",
        "shard",
    )
    return {name: getattr(row, name) for name in names} | {"gates": [str(gate) for gate in row.gates]}


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole or not at all; the folder is readable by this user alone, since tokens pass through it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """A file's content; None while it is not there."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found
