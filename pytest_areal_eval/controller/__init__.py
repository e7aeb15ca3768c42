"""The rollout controller: servers up, many episodes in flight, every one accounted for."""

from pytest_areal_eval.controller.controller import RolloutController
from pytest_areal_eval.controller.recording import EpisodeEngine, Reply
from pytest_areal_eval.controller.settings import ControllerSettings, Event, Snapshot

__all__ = ["ControllerSettings", "EpisodeEngine", "Event", "Reply", "RolloutController", "Snapshot"]
