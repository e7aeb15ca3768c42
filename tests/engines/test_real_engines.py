"""The real vLLM and SGLang on this machine's CPU, where ``make engines`` has built them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from engines.servers import MODEL, spec
from support.checkpoints import changed, untied
from support.endpoint_agent import EndpointAgent
from support.real_engines import python_of

from pytest_areal_eval.checkpoint import load_tokenizer
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.controller.settings import Needs
from pytest_areal_eval.engines.sglang import SGLangEngine
from pytest_areal_eval.engines.vllm import VLLMEngine
from pytest_areal_eval.schedulers.local import LocalScheduler

RECORDED = Path(__file__).parent / "recorded"
ENGINES = {"vllm": (VLLMEngine, "vllm-0.32"), "sglang": (SGLangEngine, "sglang-0.5.23")}
NO_WHITE_SPACE: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}'},
    "sglang": {"constrained-json-disable-any-whitespace": True},
}
"""In JSON, where the checkpoint would write it without end."""


@pytest.fixture(scope="module", params=ENGINES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, RolloutController]]:
    """Each engine's server, as the plugin starts it; with an output layer of its own, which vLLM's reload needs."""
    kind = str(request.param)
    python = python_of(kind)
    folder = tmp_path_factory.mktemp(kind)
    model = str(untied(folder / "tiny-math"))
    engine = ENGINES[kind][0](spec(kind, python=str(python), model=model, args=NO_WHITE_SPACE[kind]))
    scheduler = LocalScheduler(log_dir=folder / "logs", gpus=())
    needs = Needs(env={"VLLM_SERVER_DEV_MODE": "1"})
    settings = ControllerSettings(restarts=0, start_timeout_s=600.0, needs=needs)
    with RolloutController(
        engine, scheduler, settings=settings, tokenizer=lambda: load_tokenizer(str(MODEL), need_template=True)
    ) as controller:
        controller.initialize()
        yield kind, controller
    scheduler.close()


class Answers:
    """Asks what was asked when the answers were recorded."""

    def __init__(self, **sampling: Any) -> None:
        self.sampling = sampling
        self.tokens: list[list[int]] = []

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        """Ask, and keep the ids."""
        reply = await engine.chat([{"role": "user", "content": "What is 12 + 7?"}], **self.sampling)
        self.tokens.append(reply.response.output_tokens)
        return 1.0


def test_the_answer_is_the_recorded_one(served: tuple[str, RolloutController]) -> None:
    kind, controller = served
    answers = Answers(greedy=True, max_new_tokens=64)
    controller.submit({}, answers, item_id="one")
    assert controller.wait(timeout=120)[0].reward == 1.0
    recorded = json.loads((RECORDED / f"{ENGINES[kind][1]}.json").read_text())["ids_stop"]["body"]
    wanted = recorded["output_ids"] if kind == "sglang" else recorded["choices"][0]["token_ids"]
    assert answers.tokens == [wanted]


def test_many_seeded_requests_are_answered(served: tuple[str, RolloutController]) -> None:
    """vLLM 0.32 on a CPU died of seeds where a prompt was computed in chunks."""
    kind, controller = served
    answers = Answers(temperature=1.0, max_new_tokens=32)
    for item in range(64 if kind == "vllm" else 16):
        controller.submit({}, answers, item_id=f"row-{item}", group_size=4)
    rollouts = controller.wait(timeout=300)
    assert {str(e.status) for r in rollouts for e in r.episodes} <= {"scored", "truncated"}


def test_what_the_server_can_do_is_known(served: tuple[str, RolloutController]) -> None:
    _, controller = served
    info = controller.engine.info
    assert (info.context_length, info.model) == (2048, "tiny-math")
    assert info.concurrency >= 16


def test_answers_are_held_to_schemas_and_calls_are_forced(served: tuple[str, RolloutController]) -> None:
    """What a grammar leaves open is the checkpoint's choice, which knows no JSON."""
    _, controller = served
    number = {"type": "integer"}
    schema = {"type": "object", "properties": {"sum": number}, "required": ["sum"], "additionalProperties": False}
    both = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": both}} for name in ("add", "multiply")]
    ask = {"messages": [{"role": "user", "content": "What is 12 + 7?"}], "temperature": 0, "max_tokens": 64}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    wrong = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "nonsense"}}}
    named = {"type": "function", "function": {"name": "multiply"}}
    agent = EndpointAgent(
        ("/chat/completions", ask | {"response_format": form}),
        ("/chat/completions", ask | {"tools": tools, "tool_choice": "required"}),
        ("/chat/completions", ask | {"tools": tools, "tool_choice": named}),
        ("/chat/completions", ask | {"response_format": wrong}),
    )
    controller.submit({}, agent, item_id="one")
    assert controller.wait(timeout=120)[0].reward == 1.0
    assert [status for status, _ in agent.said] == [200, 200, 200, 400], agent.said
    held, required, chosen, refused = (body for _, body in agent.said)
    assert list(json.loads(held["choices"][0]["message"]["content"])) == ["sum"]
    for answer, names in ((required, ("add", "multiply")), (chosen, ("multiply",))):
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] in names
        assert set(json.loads(call["function"]["arguments"])) == {"a", "b"}
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert 'Unsupported type "nonsense"' in refused["error"]["message"]


def test_another_checkpoint_is_loaded_whole(served: tuple[str, RolloutController], tmp_path: Path) -> None:
    """Its greedy answers are those of transformers with it, from the first request on."""
    import torch
    import transformers

    _, controller = served
    path, before = untied(tmp_path / "untied", changed(tmp_path / "other")), controller.endpoints
    controller.update_weights(str(path))
    answers = Answers(greedy=True, max_new_tokens=48)
    controller.submit({}, answers, item_id="one")
    controller.wait(timeout=120)
    assert controller.endpoints == before
    messages = [{"role": "user", "content": "What is 12 + 7?"}]
    prompt = controller.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        whole = model.generate(**prompt, do_sample=False, max_new_tokens=48)
    assert answers.tokens == [whole[0, prompt["input_ids"].shape[1] :].tolist()]
