"""Who is told of a run.  One that raises stops the run: without the journal, going on would lose results silently.

Invariant: a listener that has failed is told nothing more, since that would come after a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.controller.settings import Event, EventKind
from pytest_areal_eval.journal.answers import Answer


class Listeners:
    """Tells a run's listeners, in the loop's thread.

    Args:
        on_episode: receives each finished episode.
        on_event: receives what happens to the servers.
        on_answer: receives each answer before it is graded, and whether it is an earlier run's; None: nobody does.
        stop: receives which of the last two raised, and what.
    """

    def __init__(
        self,
        on_episode: Callable[[Episode], None],
        on_event: Callable[[Event], None],
        on_answer: Callable[[Answer, bool], None] | None,
        stop: Callable[[str, Exception], None],
    ) -> None:
        self._on_episode = on_episode
        self._on_event = on_event
        self._on_answer = on_answer
        self._stop = stop

    @property
    def hears_answers(self) -> bool:
        """Whether answers are worth telling."""
        return self._on_answer is not None

    def episode(self, episode: Episode) -> None:
        """Tell of a finished episode; what the listener raises is raised here."""
        try:
            self._on_episode(episode)
        except BaseException:
            self._on_episode = _deaf
            raise

    def answer(self, answer: Answer, old: bool) -> None:
        """Tell of an answer."""
        if self._on_answer is None:
            return
        try:
            self._on_answer(answer, old)
        except Exception as error:
            self._on_answer = None
            self._stop(f"on_answer of item {answer.item_id!r}", error)

    def event(self, kind: EventKind, text: str) -> None:
        """Tell what happened to a server."""
        try:
            self._on_event(Event(kind, text, time.time()))
        except Exception as error:
            self._on_event = _deaf
            self._stop("on_event", error)


def _deaf(_: Any) -> None:
    """In place of a listener that failed."""
