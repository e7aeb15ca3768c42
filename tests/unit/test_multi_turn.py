"""A second try after a wrong answer: the tokens, the discount, the end."""

from __future__ import annotations

from typing import Any

import pytest
from standin.engine import LocalEngine
from standin.tokens import ByteTokenizer
from support.sessions import TINY

from pytest_areal_eval.api import Episode, EpisodeStatus, GenerationHyperparameters, ModelRequest, ModelResponse
from pytest_areal_eval.controller import RolloutController
from pytest_areal_eval.workflows.multi_turn import RETRY, MultiTurnWorkflow


def is_42(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, **columns: Any) -> float:
    return float(completions.startswith("42"))


def run(*answers: Any, context_length: int | None = None, **kwargs: Any) -> tuple[Episode, list[ModelRequest]]:
    left = list(answers)

    async def answer(request: ModelRequest) -> Any:
        return left.pop(0)

    engine = LocalEngine(answer, context_length=context_length)
    with RolloutController(engine, tokenizer=kwargs.get("tokenizer")) as controller:
        controller.initialize()
        row = {"messages": [{"role": "user", "content": "6*7?"}]}
        kwargs = {"reward_fn": is_42, **kwargs}
        (rollout,) = controller.rollout_batch([row], "pytest_areal_eval.workflows.MultiTurnWorkflow", kwargs)
    return rollout.episodes[0], engine.requests


@pytest.mark.parametrize(
    ("answers", "max_turns", "reward", "turns"),
    [(["42"], 3, 1.0, 1), (["41", "42"], 3, 0.9, 2), (["1", "2", "42"], 3, 0.81, 3), (["1", "2", "42"], 2, 0.0, 2)],
)
def test_each_further_turn_is_discounted(answers: list[str], max_turns: int, reward: float, turns: int) -> None:
    episode, requests = run(*answers, max_turns=max_turns, turn_discount=0.9)
    assert episode.reward == pytest.approx(reward)
    assert (episode.metrics["num_turns"], len(requests)) == (turns, turns)


def test_messages_are_extended_where_the_server_tokenizes() -> None:
    _, requests = run("41", "42")
    assert requests[1].messages == [
        {"role": "user", "content": "6*7?"},
        {"role": "assistant", "content": "41"},
        {"role": "user", "content": RETRY},
    ]


def test_the_generated_tokens_are_kept_and_the_turns_end_is_written_once() -> None:
    """The prompt of the second turn is the one that the chat template gives for the whole conversation."""
    from pytest_areal_eval.checkpoint import load_tokenizer

    tokenizer = load_tokenizer(str(TINY))
    said = tokenizer.encode("6 * 7 = 41.", add_special_tokens=False)
    conversation = [
        {"role": "user", "content": "6*7?"},
        {"role": "assistant", "content": "6 * 7 = 41."},
        {"role": "user", "content": RETRY},
    ]
    whole = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    workflow = MultiTurnWorkflow(is_42, GenerationHyperparameters(), tokenizer)
    first = workflow._turn.build_request({"messages": conversation[:1]})
    for output in ([*said, tokenizer.eos_token_id], said):  # ended by itself, cut off
        following = workflow._next(first, ModelResponse(output_tokens=output))
        assert tokenizer.decode(following.input_ids) == tokenizer.decode(whole)


def test_a_turn_that_does_not_fit_leaves_the_reward_before_it() -> None:
    first = ModelResponse(text="41", output_tokens=list(b"41"))
    episode, _ = run(first, tokenizer=Encoder(), context_length=60, max_turns=3)
    assert (episode.reward, episode.metrics["num_turns"]) == (0.0, 1.0)
    assert episode.status is EpisodeStatus.SCORED


class Encoder(ByteTokenizer):
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


@pytest.mark.parametrize(("name", "value"), [("max_turns", 0), ("turn_discount", 0.0), ("turn_discount", 1.5)])
def test_arguments_out_of_range_are_refused(name: str, value: float) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name):
        MultiTurnWorkflow(is_42, **arguments)
