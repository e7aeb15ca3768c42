"""Evaluate language-model checkpoints with pytest: one test per item, hundreds of episodes in flight.

What users import.  Nothing heavy is loaded until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_areal_eval.api import Episode as Episode
    from pytest_areal_eval.api import EpisodeStatus as EpisodeStatus
    from pytest_areal_eval.api import GenerationHyperparameters as GenerationHyperparameters
    from pytest_areal_eval.api import InferenceEngine as InferenceEngine
    from pytest_areal_eval.api import ModelRequest as ModelRequest
    from pytest_areal_eval.api import ModelResponse as ModelResponse
    from pytest_areal_eval.api import Rollout as Rollout
    from pytest_areal_eval.api import RolloutWorkflow as RolloutWorkflow
    from pytest_areal_eval.api import Score as Score
    from pytest_areal_eval.collection.decorator import evaluation as evaluation
    from pytest_areal_eval.controller import ControllerSettings as ControllerSettings
    from pytest_areal_eval.controller import RolloutController as RolloutController
    from pytest_areal_eval.rewards import AsyncRewardWrapper as AsyncRewardWrapper

__version__ = "0.1.0"

_HOMES = {
    "api": (
        "Episode",
        "EpisodeStatus",
        "GenerationHyperparameters",
        "InferenceEngine",
        "ModelRequest",
        "ModelResponse",
        "Rollout",
        "RolloutWorkflow",
        "Score",
    ),
    "controller": ("ControllerSettings", "RolloutController"),
    "collection.decorator": ("evaluation",),
    "rewards": ("AsyncRewardWrapper",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found  # so that the submodule of the same name does not hide the function
    return found
