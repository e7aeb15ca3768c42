"""Workflows turn an item into an episode.

Contract: an object with ``async def arun_episode(engine, data)``; it makes its requests through ``engine`` alone,
keeps no state between episodes, and returns a reward, or a dict or ``Score`` with one.  Nothing here imports pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_areal_eval.workflows.agent import AgentWorkflow
    from pytest_areal_eval.workflows.multi_turn import MultiTurnWorkflow
    from pytest_areal_eval.workflows.rlvr import RLVRWorkflow
    from pytest_areal_eval.workflows.vision import VisionRLVRWorkflow

__all__ = ["AgentWorkflow", "MultiTurnWorkflow", "RLVRWorkflow", "VisionRLVRWorkflow"]

_HOMES = {
    "AgentWorkflow": "agent",
    "MultiTurnWorkflow": "multi_turn",
    "RLVRWorkflow": "rlvr",
    "VisionRLVRWorkflow": "vision",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
