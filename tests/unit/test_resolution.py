"""What a workflow's constructor is given of an evaluation's settings."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_areal_eval.collection.resolution import accepted
from pytest_areal_eval.workflows import AgentWorkflow, MultiTurnWorkflow, RLVRWorkflow, VisionRLVRWorkflow

KNOWN = {
    "reward_fn",
    "gconfig",
    "tokenizer",
    "enable_thinking",
    "template_kwargs",
    "reward_timeout_s",
    "reward_range",
}


class Theirs:
    def __init__(self, reward_fn: Any, gconfig: Any, reward_timeout_s: float = 1.0, **more: Any) -> None:
        """As a workflow written for AReaL."""


@pytest.mark.parametrize("ours", [RLVRWorkflow, MultiTurnWorkflow, VisionRLVRWorkflow])
def test_a_workflow_of_this_package_gets_all_that_the_decorator_says(ours: type) -> None:
    assert accepted(ours, KNOWN) == KNOWN
    assert accepted(Derived, KNOWN) == KNOWN


class Derived(RLVRWorkflow):
    """With the constructor of ours."""


def test_another_gets_what_areal_would_give_it() -> None:
    assert accepted(Theirs, KNOWN) == {"reward_fn", "gconfig"}
    assert accepted(AgentWorkflow, KNOWN) == set()
    assert accepted(Theirs(print, None), KNOWN) == set()
