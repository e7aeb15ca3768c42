from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_areal_eval.api import Score
from pytest_areal_eval.errors import GraderError
from pytest_areal_eval.rewards.importing import import_from_string
from pytest_areal_eval.rewards.values import as_score


@pytest.mark.parametrize(
    "value",
    [1.0, 1, True, np.float32(1), np.int64(1), np.bool_(True), np.array(1.0), np.array([[1.0]]), [1.0], Score(1)],
)
def test_every_kind_of_number_is_a_reward(value: Any) -> None:
    score = as_score(value, "[0042]")
    assert score == Score(1.0)
    assert type(score.value) is float


def test_a_tensor_of_one_element_is_a_reward() -> None:
    torch = pytest.importorskip("torch")
    assert as_score(torch.tensor([0.5]), "[0042]").value == 0.5
    assert as_score({"rewards": torch.tensor([[0.5]])}, "[0042]").value == 0.5


@pytest.mark.parametrize("kind", ["list", "numpy", "torch"])
def test_a_trajectory_of_areals_is_scored_by_its_rewards(kind: str) -> None:
    """Shape [1] as its workflows return them, [n] where one samples several times; its tensors are no metrics."""
    make: Any = {"list": list, "numpy": np.array}.get(kind) or pytest.importorskip("torch").tensor
    tensors = {"input_ids": make([7]), "versions": make([0]), "attention_mask": make([True])}
    assert as_score({**tensors, "rewards": make([0.5])}, "[0]") == Score(0.5)
    assert as_score({**tensors, "rewards": make([1.0, 0.0, 0.5, 0.5])}, "[0]") == Score(0.5, {"n_rewards": 4.0})


def test_of_interactions_the_last_that_has_a_reward_counts() -> None:
    made = {f"chatcmpl-{n}": SimpleNamespace(reward=reward) for n, reward in enumerate((1.0, np.float32(0.25), None))}
    assert as_score(made, "[0]") == Score(0.25, {"interactions": 3.0})
    with pytest.raises(GraderError, match=r"\[0\]: none of the 1 interactions has a reward"):
        as_score({"a": SimpleNamespace(reward=None)}, "[0]")


def test_a_dict_s_other_numbers_are_metrics() -> None:
    score = as_score({"reward": 1, "turns": 3, "ok": True, "note": "fast", "extracted": "5", "gold": "6"}, "[0042]")
    assert score == Score(1.0, {"turns": 3.0, "ok": 1.0}, "5", "6")


def test_a_score_within_a_dict_keeps_what_it_saw() -> None:
    score = as_score({"score": Score(0.5, {"a": 1}, "5", "6"), "b": 2}, "[0042]")
    assert score == Score(0.5, {"a": 1.0, "b": 2.0}, "5", "6")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "the reward is nan, not a finite number"),
        (float("inf"), "the reward is inf, not a finite number"),
        (10**400, "the reward is too large for a float"),
        ("1.0", "the reward is str '1.0', not one number"),
        (None, "the reward is NoneType None, not one number"),
        ([1, 2], "the reward is list [1, 2], not one number"),
        (np.array([1.0, 2.0]), "of shape (2,), not one number"),
        ({"rewards": np.zeros((2, 2))}, "of shape (2, 2), not one number"),
        ({"rewards": []}, "the reward is list [], not one number"),
        ({"rewrad": 1}, "a dict without the key 'reward' (keys: 'rewrad')"),
        ({}, "a dict without the key 'reward' (keys: none)"),
        ({"reward": None}, "the reward is NoneType None"),
        (Score(1.0, {"a": "x"}), "metric 'a' is str 'x'"),  # type: ignore[dict-item]
        (1j, "the reward is complex 1j, not one number"),
    ],
)
def test_what_is_no_finite_number_is_an_error_that_names_the_item(value: Any, message: str) -> None:
    with pytest.raises(GraderError, match=re.escape(message)) as caught:
        as_score(value, "gsm8k[0042]")
    assert str(caught.value).startswith("gsm8k[0042]: ")


def test_the_range_is_checked_where_one_is_given() -> None:
    assert as_score(-3, "[0042]").value == -3.0
    assert as_score(1.0, "[0042]", (0.0, 1.0)).value == 1.0
    with pytest.raises(GraderError, match=r"\[0042\]: the reward is 1.5, outside 0 to 1"):
        as_score(1.5, "[0042]", (0.0, 1.0))


def test_a_dotted_name_is_imported() -> None:
    assert import_from_string("os.path.join")("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("", ValueError, "Invalid module path: ''"),
        ("gsm8k", ValueError, "Invalid module path: 'gsm8k'; write it as"),
        (".x", ValueError, "Invalid module path"),
        (3, ValueError, "Invalid module path: 3"),
        ("no_such_module.x", ImportError, "Failed to import module 'no_such_module' from path 'no_such_module.x'"),
        ("os.path.jion", AttributeError, "Module 'os.path' has no attribute 'jion'; did you mean 'join'?"),
        ("os.path.zzzzzz", AttributeError, "has no attribute 'zzzzzz'"),
    ],
)
def test_a_dotted_name_that_is_wrong_says_what_is_near(path: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        import_from_string(path)
