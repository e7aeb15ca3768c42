"""The live line: what is awaited, how far it is, and who is late.

On a terminal it stands on the line below pytest's progress and is rewritten a few times a second; anywhere else it is a
line a minute.  With ``-q -q``, or where pytest cannot write raw text, there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.report.scoreboard import Row, Scoreboard
from pytest_areal_eval.report.text import count, printable, seconds

if TYPE_CHECKING:
    from pytest_areal_eval.collection.groups import Group
    from pytest_areal_eval.controller import Event, RolloutController

REFRESH_S = 0.5
QUIET_EVERY_S = 60.0
QUIET_FIRST_S = 10.0


class LiveLine:
    """Shows progress while the main thread waits.

    Args:
        config: for the terminal.
        board: the results so far.
        events: what happened to the servers, newest last.
        by_lines: no line is rewritten, on a terminal neither.
    """

    def __init__(
        self, config: pytest.Config, board: Scoreboard, events: Sequence[Event], *, by_lines: bool = False
    ) -> None:
        self.board = board
        self.events = events
        self._reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        self._writer = config.get_terminal_writer() if self._reporter else None
        wanted = self._reporter is not None and config.option.verbose > -2
        tty = wanted and bool(getattr(self._reporter, "isatty", False)) and hasattr(self._reporter, "write_raw")
        self._mode = "terminal" if tty and not by_lines else "lines" if wanted else "off"
        self._text: Callable[[], str] = str
        self._since = self._last = time.monotonic()
        self._shown = False
        self._rates: tuple[float, int] = (0.0, 0)
        self._controller: RolloutController | None = None

    @contextmanager
    def waiting(self, controller: RolloutController) -> Iterator[None]:
        """Show how the servers come up."""
        self._controller = controller
        self._since = time.monotonic()
        if self._mode == "lines":
            self._last = self._since - QUIET_EVERY_S + QUIET_FIRST_S
        with self._showing(self._waiting_text):
            yield

    @contextmanager
    def running(self, group: Group) -> Iterator[None]:
        """Show how a group proceeds."""
        with self._showing(lambda: self._running_text(group)):
            yield

    def tick(self) -> None:
        """Called a few times a second while the main thread waits."""
        now = time.monotonic()
        if self._mode == "terminal" and now - self._last >= REFRESH_S:
            self._last = now
            self._draw(self._text())
        elif self._mode == "lines" and now - self._last >= QUIET_EVERY_S:
            self._last = now
            self._write_line(self._text())

    def _write_line(self, text: str) -> None:
        """A line of its own, behind dots too: with ``-q`` pytest itself ends no line of them."""
        self._reporter.ensure_newline()
        if self._writer is not None and self._writer.width_of_current_line:
            self._writer.line()
        self._reporter.write_line(text)

    @contextmanager
    def _showing(self, text: Callable[[], str]) -> Iterator[None]:
        self._text = text
        try:
            yield
        finally:
            if self._shown:
                self._draw("")
                self._shown = False

    def _draw(self, text: str) -> None:
        """Write the line below the cursor's and come back: ``\\n`` first, so that the screen scrolls if it must."""
        assert self._writer is not None
        column = self._writer.width_of_current_line
        cut = text[: max(self._writer.fullwidth - 1, 20)]
        self._reporter.write_raw(f"\n\x1b[2K{cut}\x1b[1A\r" + (f"\x1b[{column}C" if column else ""), flush=True)
        self._shown = bool(text)

    def _waiting_text(self) -> str:
        age = seconds(time.monotonic() - self._since)
        snapshot = self._controller.snapshot() if self._controller is not None else None
        ready = f"{snapshot.replicas_ready}/{snapshot.replicas_total} ready" if snapshot else ""
        last = self.events[-1].text if self.events else "starting"
        return printable(f"[servers] {age}  {ready}  {last}")

    def _running_text(self, group: Group) -> str:
        row = self.board.rows.get(group.key)
        parts = [f"[{group.name}]", self._progress(row)]
        if self._controller is not None:
            snapshot = self._controller.snapshot()
            parts.append(self._speed(snapshot.output_tokens))
            if snapshot.oldest_item:
                parts.append(f"oldest {snapshot.oldest_item} {seconds(snapshot.oldest_age_s)}")
        return printable("  ".join(part for part in parts if part))

    def _progress(self, row: Row | None) -> str:
        if row is None or not row.results:
            return "no result yet"
        done = len(row.results)
        text = f"{done}/{row.n_selected}"
        if done >= 2:
            rewards = [r.reward or 0.0 for r in row.results.values()]
            mean = sum(rewards) / done
            se = (sum((x - mean) ** 2 for x in rewards) / (done - 1) / done) ** 0.5
            text += f"  reward {mean:.3f} ± {se:.3f}"
        left = (row.n_selected - done) * row.spans.total_s / done
        return f"{text}  ETA {seconds(left)}" if row.n_selected > done else text

    def _speed(self, tokens: int) -> str:
        now = time.monotonic()
        if not self._rates[0]:
            self._rates = (now, tokens)
        spent = now - self._rates[0]
        return f"{count((tokens - self._rates[1]) / spent)} tok/s" if spent > 1 else ""
