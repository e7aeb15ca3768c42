"""From the selected tests to the exit status: runs the loop, decides the gates, prints, closes.

Invariant: nothing here turns a failed session into a passed one; 16 means that there was no engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.errors import ArealEvalError, EngineLost, EngineStartError, SchedulerError, UserError
from pytest_areal_eval.report.gates import Decided, decide_gates
from pytest_areal_eval.report.live import LiveLine
from pytest_areal_eval.report.scoreboard import Row, Scoreboard
from pytest_areal_eval.report.text import printable
from pytest_areal_eval.runs.baseline import Reference, refer
from pytest_areal_eval.runs.passing_on import pass_on
from pytest_areal_eval.runs.run import Run
from pytest_areal_eval.session.beginning import expected_rows, header_lines, refuse_mistakes
from pytest_areal_eval.session.runloop import CompletionOrder, completion_order_is_possible
from pytest_areal_eval.session.session import EvaluationSession
from pytest_areal_eval.session.termination import Termination, held
from pytest_areal_eval.session.xdist import Owner

if TYPE_CHECKING:
    from pytest_areal_eval.controller import Event

EXIT_ENGINE = 16
EXIT_INCONCLUSIVE = 17
LOSSES_SHOWN = 10


class Conclusion:
    """What becomes of a session's evaluations."""

    def __init__(self, config: pytest.Config, evaluations: EvaluationSession, run: Run) -> None:
        self.config = config
        self.evaluations = evaluations
        self.run = run
        self.board = Scoreboard()
        self.decided: list[Decided] = []
        self.owner: Owner | None = None
        self.termination = Termination()
        self._reference: Reference | None = None
        self._interrupted = self._cut_short = False
        run.rows = lambda: list(self.board.rows.values())

    def begin(self, session: pytest.Session) -> None:
        """Learn what was selected, and find the mistakes that need no engine.

        Raises:
            pytest.UsageError: an option cannot work.
        """
        self.evaluations.adopt(session.items)
        if not self.evaluations.groups:
            return
        self.termination.install()
        worker = self.run.worker
        try:
            if worker is not None:
                worker.has_selected()
                worker.refuse_mode()
            refuse_mistakes(self.config, self.evaluations)
            for row in expected_rows(self.evaluations):
                self.board.add(row)
            self.run.look_back()
            self._reference = refer(self.run)
        except UserError as error:
            if worker is None:
                raise pytest.UsageError(str(error)) from error
            worker.refuse(error)

    def header(self) -> list[str]:
        """What runs, on what, and how it samples; nobody sees a worker's."""
        if not self.evaluations.groups or self.config.option.verbose < 0 or self.run.worker is not None:
            return []
        return header_lines(self.run, self.board)

    def run_loop(self, session: pytest.Session) -> bool | None:
        """Report in completion order where that is possible; None leaves the loop to pytest."""
        wanted = self.evaluations.settings.get("order", "auto")
        if not completion_order_is_possible(session, wanted):
            return None
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            plural = "" if session.testsfailed == 1 else "s"
            raise session.Interrupted(f"{session.testsfailed} error{plural} during collection")
        live = LiveLine(self.config, self.board, self.run.events)
        CompletionOrder(session, self.evaluations, live, idle=load_what_the_end_needs).run()
        return True

    def expect_gates(self, session: pytest.Session) -> None:
        """Let pytest's progress count the gates as tests."""
        if self.run.worker is None:
            session.testscollected += sum(len(row.gates) for row in self.board.rows.values())

    def decide(self, session: pytest.Session) -> None:
        """Decide the gates; each is one more test."""
        if self.run.worker is not None:
            return
        if self.owner is not None:  # its rows came from the workers, during the loop
            self.expect_gates(session)
            self._reference = refer(self.run)
        settings = self.evaluations.settings
        self.decided = decide_gates(
            session,
            self.board,
            even_partial=bool(settings.get("gate-partial", False)),
            policy=settings.get("gate-policy", "point"),
            baseline=self._reference.of if self._reference is not None else lambda row: None,
        )

    def print(self, reporter: pytest.TerminalReporter) -> None:
        """The table, the gates, what happened to the engine, and where the run is."""
        rows = self.board.with_results()
        failure = self.evaluations.engine_failure()
        if failure is not None:
            reporter.write_sep("=", f"areal-eval: {type(failure).__name__}", red=True)
            reporter.write_line(printable(str(failure)))
        if self.config.option.verbose < -1 or not (rows or self.decided):
            return
        from pytest_areal_eval.report.stats import stats_lines
        from pytest_areal_eval.report.table import summary_lines

        reporter.write_sep("=", "areal-eval")
        if rows:
            width = self.config.get_terminal_writer().fullwidth if reporter.isatty else None
            whole = self.config.option.verbose > 0
            for line in [*summary_lines(rows, width), *stats_lines(rows, width, whole=whole)]:
                reporter.write_line(line)
        for line, markup in [*_change_lines(self._reference, rows), *_gate_lines(self.decided, self.board)]:
            reporter.write_line(line, **markup)
        for note in self.evaluations.notes:
            reporter.write_line(printable(note), yellow=True)
        for line, markup in _engine_lines(self.run.events):
            reporter.write_line(line, **markup)
        if self.run.folder is not None:
            cut_short = self._cut_short or failure is not None
            more = "; to go on: the same command and --resume" if cut_short else ""
            reporter.write_line(printable(f"run: {_relative(self.run.folder.path, self.config)}{more}"))
            dump = self.evaluations.settings.get("dump")
            if dump is not None:
                reporter.write_line(printable(f"rollouts in AReaL's layout: {dump}"))

    def interrupt(self, error: BaseException) -> None:
        """The session ends before its end: with Ctrl-C, SIGTERM or ``pytest.exit``."""
        self._interrupted = isinstance(error, KeyboardInterrupt)
        self._cut_short = self._interrupted and not isinstance(error, pytest.Session.Interrupted)  # which --sw raises
        if self.owner is not None:
            self.owner.interrupt()

    def finish(self, session: pytest.Session) -> None:
        """Set the exit status, keep the cache right, close the run."""
        try:
            self._finish(session)
        finally:
            self.termination.restore()

    def _finish(self, session: pytest.Session) -> None:
        if self.owner is not None:
            self.owner.close()
        self._set_exit_status(session)
        if self.run.worker is None:
            _remember_missed(self.config, self.board, [found.nodeid for found in self.decided])
        from pytest_areal_eval.report.stats import write_stats

        rows = self.board.with_results()
        summaries = [row.summary() for row in rows]
        try:
            self.run.finish(summaries, [found.to_dict() for found in self.decided], int(session.exitstatus))
            if rows and self.run.folder is not None and self.run.worker is None:
                write_stats(self.run.folder.path, rows)
                self.evaluations.notes += pass_on(self.config, self.run, rows)
        except (ArealEvalError, OSError) as error:
            reporter = self.config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(printable(f"areal-eval: {error}"), red=True)
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def _set_exit_status(self, session: pytest.Session) -> None:
        if self._interrupted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.INTERRUPTED  # a second Ctrl-C came before pytest had noted the first
        failure = self.evaluations.engine_failure()
        if failure is not None:
            session.exitstatus = _exit_status_of(failure)
            if self.run.worker is not None:
                self.run.worker.fail(failure)
        inconclusive = any(found.verdict.outcome == "inconclusive" for found in self.decided)
        if inconclusive and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = EXIT_INCONCLUSIVE


def load_what_the_end_needs() -> None:
    """Import the table and the intervals while rollouts run: a quarter of a second that the end is spared.

    Not before: the tokenizer's libraries are imported then, and two imports take turns.  Ctrl-C waits for it: Python
    drops one that comes in a callback of its import system (seen once in 44).
    """
    with held():
        import rich.console
        import rich.table
        import scipy.special
        import tabulate

        del rich, scipy, tabulate


def _exit_status_of(failure: ArealEvalError) -> int:
    """The exit status of a session that an error ended."""
    if isinstance(failure, UserError):
        return pytest.ExitCode.USAGE_ERROR
    if isinstance(failure, EngineStartError | EngineLost | SchedulerError):
        return EXIT_ENGINE
    return pytest.ExitCode.INTERNAL_ERROR


def _change_lines(reference: Reference | None, rows: Sequence[Row]) -> list[tuple[str, dict[str, bool]]]:
    return [(printable(line), {}) for line in reference.lines(rows)] if reference is not None else []


def _gate_lines(decided: Sequence[Decided], board: Scoreboard) -> list[tuple[str, dict[str, bool]]]:
    marks = {
        "pass": ("PASS", "green"),
        "fail": ("FAIL", "red"),
        "skip": ("SKIP", "yellow"),
        "inconclusive": ("INCONCLUSIVE", "yellow"),
    }
    lines = []
    for found in decided:
        word, color = marks[found.verdict.outcome]
        lines.append((printable(f"gate {word}  {found.row.name}: {found.verdict.message}"), {color: True}))
    undecided = [f"{row.name} {gate}" for row in board.rows.values() for gate in row.gates if not decided]
    if undecided:
        told = printable(f"gates not decided, the session ended before: {', '.join(undecided)}")
        lines.append((told, {"yellow": True}))
    return lines


def _engine_lines(events: Sequence[Event]) -> list[tuple[str, dict[str, bool]]]:
    """What the first server said of itself, how many followed, which were lost and when, and each warning once."""
    ready = [event.text for event in events if event.kind == "ready"]
    others = len({text.partition(" ")[0] for text in ready}) - 1
    more = f"; {others} more server{'s' if others > 1 else ''} followed" if others > 0 else ""
    warnings = dict.fromkeys(event.text for event in events if event.kind == "warning")
    lines: list[tuple[str, dict[str, bool]]] = [(printable(f"engine: {ready[0]}{more}"), {})] if ready else []
    losses = [event for event in events if event.kind in ("lost", "gone")]
    told = [f"{time.strftime('%H:%M:%S', time.localtime(one.at))} {one.text}" for one in losses[:LOSSES_SHOWN]]
    if len(losses) > LOSSES_SHOWN:
        told.append(f"{len(losses) - LOSSES_SHOWN} more losses of servers, see the run's run.json")
    told += [f"warning: {text}" for text in warnings]
    return lines + [(printable(text), {"yellow": True}) for text in told]


def _remember_missed(config: pytest.Config, board: Scoreboard, gate_nodes: Sequence[str]) -> None:
    """``--lf`` shall pick up misses; gates are no tests that it could find, and our ids need no ``cache/nodeids``."""
    cache = getattr(config, "cache", None)
    if cache is None:
        return
    failed = dict(cache.get("cache/lastfailed", {}))
    missed = {node for row in board.rows.values() for node in row.missed_nodes}
    wanted = {node: True for node in [*failed, *missed] if node not in set(gate_nodes)}
    if wanted != failed:
        cache.set("cache/lastfailed", wanted)
    nodeids = cache.get("cache/nodeids", [])
    prefixes = tuple(f"{row.key[:-1]}-" if row.key.endswith("]") else f"{row.key}[" for row in board.rows.values())
    kept = [node for node in nodeids if not node.startswith(prefixes)]
    if len(kept) != len(nodeids):
        cache.set("cache/nodeids", kept)


def _relative(path: Any, config: pytest.Config) -> str:
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return str(path)
