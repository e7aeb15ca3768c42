"""What crosses the seams: requests, responses, episodes, rollouts, and the workflow's contract.

Nothing here imports pytest, torch or transformers.
"""

from pytest_areal_eval.api.episodes import (
    GIVEN_UP,
    REWARD_ARGUMENTS,
    Dataset,
    Episode,
    EpisodeStatus,
    Record,
    RewardFn,
    Rollout,
    Score,
)
from pytest_areal_eval.api.requests import (
    TOP_K_OFF,
    GenerationHyperparameters,
    InferenceEngine,
    ModelRequest,
    ModelResponse,
    RolloutWorkflow,
    StopReason,
    has_pictures,
    is_message,
)

__all__ = [
    "GIVEN_UP",
    "REWARD_ARGUMENTS",
    "TOP_K_OFF",
    "Dataset",
    "Episode",
    "EpisodeStatus",
    "GenerationHyperparameters",
    "InferenceEngine",
    "ModelRequest",
    "ModelResponse",
    "Record",
    "RewardFn",
    "Rollout",
    "RolloutWorkflow",
    "Score",
    "StopReason",
    "has_pictures",
    "is_message",
]
