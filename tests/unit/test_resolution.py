"""What a workflow's constructor is given of an evaluation's settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_areal_eval.api import GenerationHyperparameters
from pytest_areal_eval.collection.resolution import accepted, reward_range_of
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


@pytest.mark.parametrize(
    ("is_async", "said", "held_to"),
    [(True, None, (0.0, 1.0)), (True, (-1.0, 1.0), (-1.0, 1.0)), (False, None, None), (False, (0.0, 5.0), (0.0, 5.0))],
)
def test_any_reward_is_held_to_the_range_that_its_evaluation_names(is_async: bool, said: Any, held_to: Any) -> None:
    group: Any = SimpleNamespace(plan=SimpleNamespace(is_async=is_async, spec=SimpleNamespace(reward_range=said)))
    assert reward_range_of(group) == held_to


def test_sampling_may_be_a_mapping_and_a_misspelt_name_in_it_is_refused() -> None:
    assert RLVRWorkflow("builtins.len", {"max_new_tokens": 8}).gconfig == GenerationHyperparameters(max_new_tokens=8)
    with pytest.raises(TypeError, match="no generation setting is called max_tokenz; there are: n_samples, "):
        VisionRLVRWorkflow("builtins.len", {"max_tokenz": 8})
