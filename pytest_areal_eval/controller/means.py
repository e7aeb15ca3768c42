"""What the parts of a fleet have in common: the engine, its servers' processes, the ready replicas, who is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_areal_eval.controller.instances import Instances
from pytest_areal_eval.controller.member import Member
from pytest_areal_eval.controller.replicas import Replicas
from pytest_areal_eval.controller.settings import ControllerSettings, EventKind
from pytest_areal_eval.engines.base import Engine

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True)
class Means:
    """What a fleet works with.

    Attributes:
        engine: discovers what a ready replica can do.
        instances: the replicas' processes; None where addresses were given.
        replicas: receives those that are ready.
        http: for health checks.
        settings: limits and restarts.
        emit: receives (kind, text) for a waiting person.
    """

    engine: Engine
    instances: Instances | None
    replicas: Replicas
    http: aiohttp.ClientSession
    settings: ControllerSettings
    emit: Callable[[EventKind, str], None]

    def tell(self, member: Member, kind: EventKind, text: str) -> None:
        """Emit what is said of a replica again and again, unless it was just said."""
        if text != member.told:
            member.told = text
            self.emit(kind, text)
