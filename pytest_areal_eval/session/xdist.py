"""pytest-xdist: the controlling process owns the servers, the run and the verdicts; workers attach.

They meet in a folder that only this user can read: a worker that needs an engine leaves a note there, the owner starts
the servers once, answers with a file and keeps that up to date.  Nothing is started for a session that selects no
evaluation.  Results come back on the reports themselves, so that a worker that dies later takes none of them along.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval import errors
from pytest_areal_eval.errors import ArealEvalError, UserError
from pytest_areal_eval.report.live import LiveLine
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.session.session import Starting
from pytest_areal_eval.session.worker import (
    ANSWER,
    FAILED,
    FOUND,
    KEY,
    LOOK,
    NEED,
    POLL_S,
    REFUSED,
    SELECTED,
    read,
    write,
)
from pytest_areal_eval.stats import parse_gate

if TYPE_CHECKING:
    from pytest_areal_eval.controller import RolloutController
    from pytest_areal_eval.session.conclusion import Conclusion

ANSWER_LIMIT_S = 2 * 86_400.0
"""How long a worker waits for an answer, beyond what the options allow a server's queue and start, which say more when
they end; by default a server may wait for a day.  A worker ends with its owner, whatever it waits for."""


class Owner:
    """The controlling process's part.

    Args:
        config: of the controlling process.
        conclusion: where results are added up.
    """

    def __init__(self, config: pytest.Config, conclusion: Conclusion) -> None:
        self.config = config
        self.conclusion = conclusion
        self.folder = Path(tempfile.mkdtemp(prefix="areal-eval-"))
        self.workers: list[str] = []
        self._controller: RolloutController | None = None
        self._scheduler: Any = None
        self._answered: dict[str, Any] = {}
        self._interrupted = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="areal-eval-owner", daemon=True)
        self._thread.start()

    def configure(self, node: Any) -> None:
        """Tell a worker where to ask."""
        self.workers.append(node.gateway.id)
        count = int(node.workerinput["workercount"])
        mode = str(self.config.getoption("dist", "no"))
        settings = self.conclusion.evaluations.settings
        limit_s = ANSWER_LIMIT_S + settings.get("queue-timeout", 0.0) + 2 * settings.get("start-timeout", 0.0)
        node.workerinput[KEY] = {"folder": str(self.folder), "workers": count, "mode": mode, "limit_s": limit_s}

    def node_collected(self) -> None:
        """A worker has collected: SIGTERM acts as Ctrl-C from now on if there are evaluations.

        Raises:
            pytest.UsageError: it found something wrong.
        """
        if (self.folder / SELECTED).exists():
            self.conclusion.termination.install()
        found = read(self.folder / REFUSED)
        if found is not None:
            raise pytest.UsageError(found["text"])

    def interrupt(self) -> None:
        """Let no worker wait for what will not come: xdist gives them 10 s before it kills them, and we are next."""
        self._adopt_failure()  # a worker's end interrupts the session, too; what they say later is our own word
        self._interrupted = True
        self._stop.set()
        for answer in (FOUND, ANSWER):
            if not (self.folder / answer).exists():
                write(self.folder / answer, {"error": "the session was interrupted", "hint": ""})

    def close(self) -> None:
        """End the servers, those that start too, and remove the folder."""
        self._stop.set()
        self._destroy()
        self._thread.join(timeout=30)
        self._destroy()  # what the thread was about to start
        if self._scheduler is not None:
            self._scheduler.close()
        self._adopt_failure()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _adopt_failure(self) -> None:
        """Take what ended a worker's session for the session's own, unless it came from here."""
        told, evaluations = read(self.folder / FAILED), self.conclusion.evaluations
        if told is not None and evaluations.engine_error is None and not self._interrupted:
            evaluations.engine_error = getattr(errors, told["kind"], ArealEvalError)(told["text"], hint=told["hint"])

    def _destroy(self) -> None:
        if self._controller is not None:
            self._controller.destroy()

    def _serve(self) -> None:
        waiting = {LOOK: (FOUND, self._look), NEED: (ANSWER, self._answer)}
        while not self._stop.wait(POLL_S):
            for note, (answer, work) in list(waiting.items()):
                asked = read(self.folder / note)
                if asked is not None:
                    del waiting[note]
                    self._reply(asked, answer, work)
            self._keep_up_to_date()

    def _keep_up_to_date(self) -> None:
        """Tell the workers of servers that became ready, were started again or will not come back."""
        if self._controller is None or not self._answered:
            return
        failure = self._controller.failure
        if failure is None:
            now = self._answered | {"endpoints": [asdict(endpoint) for endpoint in self._controller.endpoints]}
        else:
            now = {"error": str(failure.args[0]), "hint": failure.hint}
        if now != self._answered:
            self._answered = now
            write(self.folder / ANSWER, now)

    def _reply(
        self, asked: Mapping[str, Any], answer: str, work: Callable[[Mapping[str, Any]], dict[str, Any]]
    ) -> None:
        try:
            found = work(asked)
        except Exception as error:
            if self._stop.is_set():  # what was starting was broken off
                return
            failure = ArealEvalError(f"{type(error).__name__}: {error}")
            self.conclusion.evaluations.engine_error = failure
            write(self.folder / answer, {"error": str(failure), "hint": ""})  # or workers would wait for it
            raise
        write(self.folder / answer, found)

    def _look(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"run": str(self.conclusion.run.take_earlier(asked["evaluations"]))}
        except UserError as error:
            return {"error": str(error.args[0]), "hint": error.hint}

    def _answer(self, need: Mapping[str, Any]) -> dict[str, Any]:
        for row in need["rows"]:
            gates = [parse_gate(text) for text in row["gates"]]
            self.conclusion.board.add(Row(**{**row, "gates": gates, "shard": row["shard"] and tuple(row["shard"])}))
        run = self.conclusion.run
        if need["earlier"]:
            self.conclusion.evaluations.notes.append(need["earlier"])
        try:
            path = str(run.open(need["evaluations"]).path) if run.keeps else None
            started = self._start(need["model"]) if need["generates"] else []
            self._answered = {"run": path, "endpoints": started}
            return self._answered
        except ArealEvalError as error:
            self.conclusion.evaluations.engine_error = error
            return {"error": str(error.args[0]), "hint": error.hint}

    def _start(self, model: str | None) -> list[dict[str, str]]:
        from pytest_areal_eval.backends.assembly import build_scheduler
        from pytest_areal_eval.session.wiring import initializer, make_controller

        run, settings = self.conclusion.run, self.conclusion.evaluations.settings
        if settings.get("replay") is not None or (model is None and not settings.get("base-url")):
            return []
        self._scheduler = build_scheduler(settings, run.log_dir())
        self._controller = made = make_controller(run, model, self._scheduler)
        live = LiveLine(self.config, self.conclusion.board, run.events, by_lines=True)  # the main thread is xdist's
        with live.waiting(made):
            Starting(initializer(run, made)).wait(live.tick)
        run.describe_model(model)
        return [asdict(endpoint) for endpoint in made.endpoints]


def own_workers(config: pytest.Config, conclusion: Conclusion) -> Owner:
    """The xdist owner of a controlling process, made with its first worker.

    Raises:
        pytest.UsageError: an option cannot work.
    """
    if conclusion.owner is None:
        from pytest_areal_eval.session.beginning import refuse_wrong_options

        settings = conclusion.evaluations.settings
        try:
            refuse_wrong_options(config, settings)
        except UserError as error:
            raise pytest.UsageError(str(error)) from error
        if len(settings.get("model", [])) > 1:
            raise pytest.UsageError("several --model with -n: give one --model, or leave -n out")
        conclusion.owner = Owner(config, conclusion)
    return conclusion.owner
