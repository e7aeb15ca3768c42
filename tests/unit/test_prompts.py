"""A conversation is rendered once for all episodes of its item, however they ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from jinja2 import TemplateError
from standin.engine import LocalEngine
from standin.tokens import ByteTokenizer

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.controller import RolloutController
from pytest_areal_eval.errors import PromptError
from pytest_areal_eval.workflows import MultiTurnWorkflow, RLVRWorkflow, VisionRLVRWorkflow
from pytest_areal_eval.workflows.prompts import KEPT, Prompts

CHAT = [{"role": "user", "content": "6*7?"}]


class Loud(str):
    """It prints otherwise than it compares, as enumerations of texts do."""

    def __str__(self) -> str:
        return self.upper()


class Counting(ByteTokenizer):
    """Counts what it does."""

    def __init__(self) -> None:
        self.rendered = self.decoded = 0

    def apply_chat_template(self, *args: Any, **options: Any) -> Any:
        self.rendered += 1
        return super().apply_chat_template(*args, **options)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        self.decoded += not skip_special_tokens
        return super().decode(ids, skip_special_tokens)


async def ask(engine: Any, item: dict[str, Any]) -> float:
    return float("42" in (await engine.chat(item["messages"])).text)


def test_episodes_that_chat_render_their_item_once() -> None:
    tokenizer = Counting()
    with RolloutController(LocalEngine(), tokenizer=tokenizer) as controller:
        controller.initialize()
        (rollout,) = controller.rollout_batch([{"messages": CHAT}], ask, group_size=4)
    assert [e.prompt for e in rollout.episodes] == ["<user>6*7?</user>\n<assistant>"] * 4
    assert (tokenizer.rendered, tokenizer.decoded) == (1, 1)


def test_workflows_of_a_run_share_what_is_rendered() -> None:
    tokenizer = Counting()
    with RolloutController(LocalEngine(), tokenizer=tokenizer) as controller:
        controller.initialize()
        controller.rollout_batch([{"messages": CHAT}], ask)
        controller.rollout_batch([{"messages": CHAT}], RLVRWorkflow("math.hypot", tokenizer=tokenizer), group_size=2)
    assert tokenizer.rendered == 1


def test_ids_that_were_given_out_may_be_changed() -> None:
    prompts, tokenizer = Prompts(), ByteTokenizer()
    first = prompts.ids(tokenizer, CHAT, {})
    first.append(0)
    assert prompts.ids(tokenizer, CHAT, {}) == first[:-1]


@pytest.mark.parametrize("template", [{"enable_thinking": True}, {"enable_thinking": False}])
def test_another_template_argument_is_another_prompt(template: dict[str, Any]) -> None:
    prompts, tokenizer = Prompts(), ByteTokenizer()
    prompts.ids(tokenizer, CHAT, {"enable_thinking": not template["enable_thinking"]})
    text = prompts.text(tokenizer, prompts.ids(tokenizer, CHAT, template))
    assert text.endswith("<think>\n") == template["enable_thinking"]


def test_a_tool_given_as_a_function_is_rendered_each_time() -> None:
    """Its only name is its address, which another function may have next."""
    prompts, tokenizer = Prompts(), Counting()
    for _ in range(2):
        prompts.ids(tokenizer, CHAT, {"tools": [lambda: None]})
    assert tokenizer.rendered == 2


@pytest.mark.parametrize(("one", "other"), [({1: "x"}, {"1": "x"}), (1, True), ("user", Loud("user"))])
def test_values_that_only_json_takes_for_the_same_are_kept_apart(one: object, other: object) -> None:
    """A template may print each otherwise."""
    prompts, tokenizer = Prompts(), Counting()
    for value in (one, other, one):
        prompts.ids(tokenizer, CHAT, {"enable_thinking": value})
    assert tokenizer.rendered == 2


def test_the_oldest_prompt_goes_first() -> None:
    prompts, tokenizer = Prompts(), Counting()
    for number in range(KEPT + 1):
        prompts.ids(tokenizer, str(number), {})
    prompts.ids(tokenizer, str(KEPT), {})
    assert tokenizer.rendered == KEPT + 1
    prompts.ids(tokenizer, "0", {})
    assert tokenizer.rendered == KEPT + 2


def test_tokenizers_are_kept_apart() -> None:
    prompts, one, other = Prompts(), Counting(), Counting()
    for tokenizer in (one, other):
        prompts.ids(tokenizer, CHAT, {})
    assert (one.rendered, other.rendered) == (1, 1)


def right(*args: Any, **columns: Any) -> float:
    return 1.0


class Refusing(ByteTokenizer):
    """Its template knows no such conversation."""

    def apply_chat_template(self, *args: Any, **options: Any) -> Any:
        raise TemplateError("roles must\nalternate")


class Processor:
    tokenizer = Refusing()

    def apply_chat_template(self, *args: Any, **options: Any) -> Any:
        raise TypeError("can only concatenate str")


@pytest.mark.parametrize(
    ("workflow", "said"),
    [
        (ask, "TemplateError: roles must alternate"),
        (RLVRWorkflow(right, tokenizer=Refusing()), "TemplateError: roles must alternate"),
        (VisionRLVRWorkflow(right, processor=Processor()), "TypeError: can only concatenate str"),
    ],
)
def test_a_template_that_fails_is_a_line_that_names_the_item_and_no_librarys_traceback(
    workflow: Any, said: str
) -> None:
    with RolloutController(LocalEngine(), tokenizer=Refusing()) as controller:
        controller.initialize()
        (rollout,) = controller.rollout_batch([{"id": "fr", "messages": CHAT}], workflow)
    (episode,) = rollout.episodes
    first, hint = episode.error.splitlines()
    assert first == f"item {episode.item_id!r}: the chat template fails over the messages: {said}"
    assert "template_kwargs" in hint
    assert (episode.traceback, episode.status) == ("", EpisodeStatus.WORKFLOW_ERROR)


def test_a_template_without_a_second_turn_is_told_before_any_row() -> None:
    with pytest.raises(PromptError, match=r"^the chat template fails over the messages: TemplateError"):
        MultiTurnWorkflow(right, tokenizer=Refusing())
