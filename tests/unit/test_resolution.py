"""What a workflow's constructor is given of an evaluation's settings."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_areal_eval.resolution import _accepted
from pytest_areal_eval.workflows import AgentWorkflow, MultiTurnWorkflow, RLVRWorkflow, VisionRLVRWorkflow

KNOWN = {
    "reward_fn": print,
    "gconfig": object(),
    "tokenizer": None,
    "enable_thinking": False,
    "template_kwargs": {"a": 1},
    "reward_timeout_s": 3.0,
    "reward_range": (0, 2),
}
ALL = {name: value for name, value in KNOWN.items() if value is not None}


class Theirs:
    def __init__(self, reward_fn: Any, gconfig: Any, reward_timeout_s: float = 1.0, **more: Any) -> None:
        """As a workflow written for AReaL."""


@pytest.mark.parametrize("ours", [RLVRWorkflow, MultiTurnWorkflow, VisionRLVRWorkflow])
def test_a_workflow_of_this_package_gets_all_that_the_decorator_says(ours: type) -> None:
    assert _accepted(ours, KNOWN) == ALL
    assert _accepted(f"pytest_areal_eval.workflows.{ours.__name__}", KNOWN) == ALL


def test_another_gets_what_areal_would_give_it() -> None:
    assert _accepted(Theirs, KNOWN).keys() == {"reward_fn", "gconfig"}
    assert _accepted(AgentWorkflow, KNOWN) == {}
    assert _accepted(Theirs(print, None), KNOWN) == {}
