"""One run on disk: its folder, its journal, what describes it, and its end.

Invariant: the folder is made when the first controller is, never for a run that only collects; an episode is in the
journal before anyone hears of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.collection.groups import membership
from pytest_areal_eval.errors import ConfigError, JournalError
from pytest_areal_eval.options.declarations import RESULTS_DIR
from pytest_areal_eval.session.session import EvaluationSession

if TYPE_CHECKING:
    from pytest_areal_eval.api import Episode
    from pytest_areal_eval.controller import Event
    from pytest_areal_eval.journal import Answer, Journal, RunFolder
    from pytest_areal_eval.report.scoreboard import Row
    from pytest_areal_eval.runs.history import History
    from pytest_areal_eval.session.worker import Worker
    from pytest_areal_eval.stats import Summary


class Run:
    """The run of a session.  One lives in ``config.stash[RUN]``.

    Attributes:
        folder: its folder, once it is open.
        events: what happened to the servers, newest last.
    """

    def __init__(self, config: pytest.Config, evaluations: EvaluationSession) -> None:
        self.config = config
        self.evaluations = evaluations
        self.started_at = time.time()
        self.folder: RunFolder | None = None
        self.events: list[Event] = []
        self.worker = _worker_of(config)
        self.answer: dict[str, Any] = {}
        self.rows: Callable[[], Sequence[Row]] = list
        self._journal: Journal | None = None
        self._info: dict[str, Any] = {}
        self._resumed: RunFolder | None = None
        evaluations.on_episode = self.record
        evaluations.on_answer = self.record_answer
        evaluations.on_recalled = self.record_recalled
        evaluations.open_run = self.open
        evaluations.describe_model = self.describe_model
        if self.worker is not None:
            evaluations.runs_here = self.worker.runs

    def open(self, evaluations: Mapping[str, Any] | None = None) -> RunFolder:
        """Make the folder and write ``run.json``; a second call gives the same folder.

        Args:
            evaluations: descriptions of the evaluations where they were collected elsewhere (xdist workers).

        Raises:
            ConfigError: the results folder cannot be written.
        """
        if self.folder is None:
            try:
                if self.worker is None:
                    self._make(evaluations)
                else:
                    self._join(self.worker)
                self._dump()
            except JournalError as error:
                raise ConfigError(str(error.args[0]), error.hint) from error
        assert self.folder is not None
        return self.folder

    def _make(self, evaluations: Mapping[str, Any] | None) -> None:
        from pytest_areal_eval.journal import Journal, RunFolder
        from pytest_areal_eval.runs.description import describe_session

        history = self.evaluations.history
        if self._resumed is not None and history is not None:
            self.folder = self._resumed
            said = describe_session(self.config, self.evaluations.settings, self.started_at)
            again = {name: said[name] for name in ("started_at", "command_line", "git", "versions", "machine")}
            before = history.info.get("resumed", [])
            self._info = dict(history.info) | {"status": "started", "resumed": [*before, again]}
        else:
            said = describe_session(self.config, self.evaluations.settings, self.started_at)
            self._info = said | {"evaluations": evaluations or self.describe_evaluations()}
            self.folder = RunFolder.create(self.results_dir, name_hint=self._name_hint())
            if history is not None:
                self._info["rescored_from"] = history.path.name
            self._write_items(self.folder.path)  # a run with its run.json has them all
        self._journal = Journal.open(self.folder.path)
        self.folder.write_run(self._info)

    @property
    def results_dir(self) -> Path:
        """Where runs are kept."""
        results_dir = self.evaluations.settings.get("results-dir", RESULTS_DIR)
        return Path(self.config.invocation_params.dir / results_dir)

    def look_back(self) -> None:
        """Read the run that ``--resume``, ``--rescore`` or ``--from-run`` names, and hold it where it goes on.

        Raises:
            UserError: there is none, another process holds it, or it was made otherwise.
        """
        from pytest_areal_eval.runs import earlier

        self._go_back_to(lambda: earlier.look_back(self))

    def take_earlier(self, evaluations: Sequence[str]) -> Path:
        """The same for evaluations that workers collected, which compare them with the run; the run's folder.

        Raises:
            UserError: there is none, or another process holds it.
        """
        from pytest_areal_eval.runs import earlier

        self._go_back_to(lambda: earlier.take(self, evaluations))
        assert self.evaluations.history is not None
        return self.evaluations.history.path

    def _go_back_to(self, look: Callable[[], tuple[History, RunFolder | None] | None]) -> None:
        try:
            found = look()
        except JournalError as error:
            raise ConfigError(str(error.args[0]), error.hint) from error
        if found is None:
            return
        self.evaluations.history, self._resumed = found
        if not self.keeps:
            self.evaluations.open_run = self._ask_owner

    @property
    def keeps(self) -> bool:
        """Whether the session has anything new to keep."""
        history = self.evaluations.history
        return history is None or history.purpose != "from-run"

    @property
    def _goes_on(self) -> bool:
        """Whether what an earlier run has is in the journal already."""
        history = self.evaluations.history
        return history is not None and history.purpose == "resume"

    def _ask_owner(self) -> None:
        """On an xdist worker: tell the owner what is evaluated, and learn where the run and its servers are."""
        if self.worker is None:
            return
        from pytest_areal_eval.runs.earlier import description
        from pytest_areal_eval.session.worker import row_to_dict

        evaluations, history = self.evaluations, self.evaluations.history
        self.answer = self.worker.ask(
            {
                "rows": [row_to_dict(row) for row in self.rows()],
                "model": next(iter(evaluations.settings.get("model", [])), None),
                "evaluations": self.describe_evaluations(),
                "earlier": description(self, history) if history is not None else None,
                "generates": evaluations.needs_engine(),
            }
        )

    def _join(self, worker: Worker) -> None:
        """On an xdist worker: write into the owner's folder, to a file of one's own."""
        from pytest_areal_eval.journal import Journal, RunFolder

        self._ask_owner()
        self.folder = RunFolder(Path(self.answer["run"]))
        self._journal = Journal.open(self.folder.path, worker.name)
        if worker.is_first and not self._goes_on:
            self._write_items(self.folder.path, worker.name)

    def _write_items(self, folder: Path, writer: str = "") -> None:
        """Keep each item's hash and short columns beside the episodes, for reports and comparisons."""
        from pytest_areal_eval.journal.items import write_items

        for group in self.evaluations.groups.values():
            params = [param for found in map(membership, group.items) if found is not None for param in found[1:]]
            params.sort(key=lambda param: param.index)  # whatever a plugin made of the tests' order
            rows = [(param.id, group.plan.data.records[param.index]) for param in params]
            write_items(folder, group.name, rows, writer=writer)

    def _dump(self) -> None:
        """Write each rollout in AReaL's layout as well, where the configuration wants that."""
        folder = self.evaluations.settings.get("dump")
        if folder is not None and self.folder is not None:
            from pytest_areal_eval.journal.dumps import ArealDump

            dump = ArealDump(self.config.invocation_params.dir / folder, self.folder.path.name)
            self.evaluations.on_rollout = dump.write

    def log_dir(self) -> Path:
        """Where the servers' own logs go."""
        path = self.open().path / "logs"
        path.mkdir(exist_ok=True)
        return path

    def record(self, episode: Episode) -> None:
        """Write a finished episode to the journal; called in the controller's thread."""
        assert self._journal is not None
        self._journal.append(episode)

    def record_answer(self, answer: Answer, old: bool) -> None:
        """Write an answer of the engine to the journal, unless it is there; called in the controller's thread."""
        assert self._journal is not None
        if not (old and self._goes_on):
            self._journal.append_answer(answer)

    def record_recalled(self, episode: Episode) -> None:
        """Write an earlier run's episode to the journal of this one, if it has one of its own."""
        if self._journal is not None and not self._goes_on:
            self._journal.append(episode)

    @property
    def info(self) -> Mapping[str, Any]:
        """What ``run.json`` says."""
        return self._info

    def finish(self, summaries: Sequence[Summary], gates: Sequence[Mapping[str, Any]], exit_status: int) -> None:
        """Write the end of the run and close its files."""
        if self.folder is None:
            if self._resumed is not None:
                self._resumed.close()
            return
        if self.worker is not None:
            if self._journal is not None:
                self._journal.close()
            return
        self._info |= {
            "status": "finished",
            "exit_status": exit_status,
            "finished_at": time.time(),
            "wall_s": time.time() - self.started_at,
            "evaluations": self._info["evaluations"]
            | {s.name: self._info["evaluations"].get(s.name, {}) | {"summary": s.to_dict()} for s in summaries},
            "gates": list(gates),
            "events": [{"kind": e.kind, "text": e.text, "at": e.at} for e in self.events if e.kind != "log"],
        }
        from pytest_areal_eval.journal import merge_journals

        try:
            if self._journal is not None:
                self._journal.close()
            merge_journals(self.folder.path)
        except (JournalError, OSError) as error:
            self._info["status"] = f"the journal is incomplete: {error}"
            raise
        finally:
            try:
                self.folder.write_run(self._info)
            finally:
                self.folder.close()

    def _name_hint(self) -> str:
        settings = self.evaluations.settings
        models = settings.get("model", [])
        source = settings.get("replay") or (models[0] if models else "run")
        name = Path(source).stem if settings.get("replay") else Path(source).resolve().name
        return "-".join(part for part in (settings.get("trial"), name) if part)

    def describe_evaluations(self) -> dict[str, Any]:
        """What each evaluation is: its data, its sampling, its workflow and reward."""
        from pytest_areal_eval.runs.description import describe_group

        gates = {row.key: [str(gate) for gate in row.gates] for row in self.rows()}
        groups, settings = self.evaluations.groups.values(), self.evaluations.settings
        return {group.name: describe_group(group, settings) | {"gates": gates.get(group.key, [])} for group in groups}

    def describe_model(self, model: str | None) -> None:
        """Add a checkpoint's identity to ``run.json``; reads its files, so better while its servers start."""
        if model is None or self.folder is None or self.worker is not None or model in self._info["models"]:
            return
        from pytest_areal_eval.backends.choice import checkpoint_of
        from pytest_areal_eval.journal import checkpoint_fingerprint

        checkpoint = checkpoint_of(self.evaluations.settings, model)
        if checkpoint is None:  # a name at an endpoint
            return
        fingerprint = checkpoint_fingerprint(checkpoint.path)
        self._info["models"][model] = {
            "path": checkpoint.path,
            "fingerprint": {"kind": fingerprint.kind, "digest": fingerprint.digest},
            "context_length": checkpoint.context_length,
            "generation_defaults_ignored": dict(checkpoint.generation_defaults),
        }
        self.folder.write_run(self._info)


def _worker_of(config: pytest.Config) -> Worker | None:
    from pytest_areal_eval.session.worker import KEY, Worker

    return Worker(config) if KEY in getattr(config, "workerinput", {}) else None
