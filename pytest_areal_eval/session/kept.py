"""Servers that stay up from one checkpoint to the next, where the two differ in their weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_areal_eval.backends.choice import same_servers
from pytest_areal_eval.engines.base import Reloading

if TYPE_CHECKING:
    from pytest_areal_eval.controller import RolloutController
    from pytest_areal_eval.session.session import EvaluationSession


class Kept:
    """Holds the controller of one checkpoint until the next one's turn.

    Args:
        evaluations: know which checkpoint is next.
    """

    def __init__(self, evaluations: EvaluationSession) -> None:
        self._evaluations = evaluations
        self._held: tuple[RolloutController, str] | None = None

    def leave(self, controller: RolloutController, model: str | None) -> None:
        """End a checkpoint's turn: hold its controller for the next one, or destroy it."""
        following = self._evaluations.following_model(model)
        reloads = isinstance(controller.engine, Reloading) and controller.failure is None
        if model and following and reloads and same_servers(self._evaluations.settings, model, following):
            self._held = controller, following
        else:
            controller.destroy()

    def take(self, model: str | None) -> RolloutController | None:
        """The controller that was held for a checkpoint."""
        if self._held is None or self._held[1] != model:
            self.close()
            return None
        (controller, _), self._held = self._held, None
        return controller

    def close(self) -> None:
        """Destroy what is held."""
        if self._held is not None:
            self._held[0].destroy()
            self._held = None
