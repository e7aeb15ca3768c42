"""Answers that are held to a form: a schema's JSON, and calls that a model must make, on stand-ins of all engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engines.servers import attached, spec
from standin.engine import LocalEngine
from standin.engines import VLLM, Hosted, SGLang
from standin.server import Loaded, Running, Standin, in_thread
from standin.tokens import ByteTokenizer
from support.endpoint_agent import EndpointAgent

from pytest_areal_eval.api import ModelRequest
from pytest_areal_eval.checkpoint import load_tokenizer
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.engines.base import Endpoint, Engine, EngineInfo
from pytest_areal_eval.engines.openai import OpenAIEngine
from pytest_areal_eval.engines.sglang import SGLangEngine
from pytest_areal_eval.engines.vllm import VLLMEngine

KINDS: dict[str, tuple[type[VLLMEngine] | type[SGLangEngine], type[Standin]]] = {
    "vllm": (VLLMEngine, VLLM),
    "sglang": (SGLangEngine, SGLang),
}
MESSAGES = [{"role": "user", "content": "Two and three?"}]
ASK = {"messages": MESSAGES}
ANSWER = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER, "strict": True}}
POINT = {"type": "object", "properties": {"x": {"type": "number"}}}
PARAMETERS = {
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "move": {"type": "object", "properties": {"to": {"$ref": "#/$defs/Point"}}, "$defs": {"Point": POINT}},
}
CHAT_TOOLS = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in PARAMETERS.items()]
RESPONSES_TOOLS = [{"type": "function", "name": n, "parameters": p} for n, p in PARAMETERS.items()]
ANTHROPIC_TOOLS = [{"name": n, "input_schema": p} for n, p in PARAMETERS.items()]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The shipped checkpoint's, whose template writes calls as ``<tool_call>{JSON}``."""
    return load_tokenizer(str(Path(__file__).parents[2] / "models/tiny-math"), need_template=True)


def ask(engine: Engine, server: Running, tokenizer: Any, *asks: tuple[str, dict[str, Any]]) -> list[tuple[int, Any]]:
    """What an agent is answered."""
    agent = EndpointAgent(*asks)
    with attached(engine, server, tokenizer=tokenizer, messages=tokenizer is None) as controller:
        controller.rollout_batch([{"q": "x"}], agent)
    return agent.said


def content(said: tuple[int, Any]) -> Any:
    """What a chat answer's content is as JSON."""
    assert said[0] == 200, said
    return json.loads(said[1]["choices"][0]["message"]["content"])


def test_an_answer_is_held_to_a_schema(kind: str, tokenizer: Any) -> None:
    beside = {name: FORM["json_schema"][name] for name in ("name", "schema")}  # type: ignore[index]
    asks = (
        ("/chat/completions", ASK | {"response_format": FORM}),
        ("/responses", {"input": "x", "text": {"format": {"type": "json_schema", **beside}}}),
        ("/messages", ASK | {"output_config": {"format": {"type": "json_schema", "schema": ANSWER}}}),
        ("/chat/completions", ASK | {"response_format": {"type": "json_object"}}),
        ("/chat/completions", ASK | {"response_format": {"type": "text"}}),
    )
    made, served = KINDS[kind]
    with in_thread(served) as server:
        chat, responses, messages, free, plain = ask(made(spec(kind)), server, tokenizer, *asks)
        bodies = list(server.server.bodies)
    assert content(chat) == {"sum": 1}
    assert json.loads(responses[1]["output"][0]["content"][0]["text"]) == {"sum": 1}
    assert json.loads(messages[1]["content"][0]["text"]) == {"sum": 1}
    assert content(free) == {}
    assert "boxed" in plain[1]["choices"][0]["message"]["content"]
    if kind == "vllm":
        words = [body.get("structured_outputs") for body in bodies]
        assert words == [{"json": ANSWER}] * 3 + [{"json_object": True}, None]
    else:
        texts = [body["sampling_params"].get("json_schema") for body in bodies]
        assert [text and json.loads(text) for text in texts] == [ANSWER] * 3 + [{"type": "object"}, None]


def test_a_call_is_forced_in_the_models_own_form(kind: str, tokenizer: Any) -> None:
    """Its opening tag ends the prompt, the rest follows a schema; definitions stay where their references point."""
    chat, named = ASK | {"tools": CHAT_TOOLS}, {"type": "function", "function": {"name": "move"}}
    asks = (
        ("/chat/completions", chat | {"tool_choice": "required"}),
        ("/chat/completions", chat | {"tool_choice": named}),
        ("/responses", {"input": "x", "tools": RESPONSES_TOOLS, "tool_choice": {"type": "function", "name": "move"}}),
        ("/messages", ASK | {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "any"}}),
        ("/messages", ASK | {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool", "name": "move"}}),
    )
    made, served = KINDS[kind]
    with in_thread(served, tokenizer=Loaded(tokenizer.backend_tokenizer)) as server:
        said = [body for status, body in ask(made(spec(kind)), server, tokenizer, *asks) if status == 200]
        body = server.server.bodies[0]
    choices = [one["choices"][0] for one in said[:2]]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls"] * 2
    calls = [choice["message"]["tool_calls"][0]["function"] for choice in choices]
    calls += [said[2]["output"][0]]
    moved = {"to": {"x": 1.5}}
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("add", {"a": 1, "b": 1}),
        ("move", moved),
        ("move", moved),
    ]
    assert [(one["content"][0]["name"], one["stop_reason"]) for one in said[3:]] == [
        ("add", "tool_use"),
        ("move", "tool_use"),
    ]
    assert tokenizer.decode(body.get("prompt") or body["input_ids"]).endswith("<|im_start|>assistant\n<tool_call>")
    schema = (body.get("structured_outputs") or {}).get("json") or json.loads(body["sampling_params"]["json_schema"])
    assert [one["properties"]["name"] for one in schema["anyOf"]] == [{"enum": ["add"]}, {"enum": ["move"]}]
    assert schema["$defs"] == {"Point": POINT}


def test_a_schema_that_is_none_is_refused_in_the_servers_words(kind: str, tokenizer: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    made, served = KINDS[kind]
    with in_thread(served) as server:
        ((status, body),) = ask(
            made(spec(kind)), server, tokenizer, ("/chat/completions", ASK | {"response_format": form})
        )
    assert status == 400
    assert 'Unsupported type "nonsense"' in body["error"]["message"]


class OldVLLM(VLLM):
    """It took the schema in another field."""

    version = "0.11.2"


class Ungrammatical(SGLang):
    """Started with ``--grammar-backend none``."""

    grammar_backend = "none"


@pytest.mark.parametrize(("kind", "served"), [("vllm", OldVLLM), ("sglang", Ungrammatical)])
def test_a_server_that_cannot_is_known(kind: str, served: type[Standin], tokenizer: Any) -> None:
    with in_thread(served) as server:
        ((status, body),) = ask(
            KINDS[kind][0](spec(kind)), server, tokenizer, ("/chat/completions", ASK | {"response_format": FORM})
        )
        assert server.server.load.requests == 0
    assert status == 400
    assert "response_format: this engine cannot hold an answer to a JSON schema" in body["error"]["message"]


def test_a_hosted_api_gets_both_as_they_are() -> None:
    named = {"type": "function", "function": {"name": "add"}}
    asks = (
        ("/chat/completions", ASK | {"response_format": FORM}),
        ("/chat/completions", ASK | {"tools": CHAT_TOOLS, "tool_choice": named}),
        ("/chat/completions", ASK | {"tools": CHAT_TOOLS[:1], "tool_choice": named}),
    )
    with in_thread(Hosted) as server:
        engine = OpenAIEngine([Endpoint("server/0", server.url)], "gpt-x")
        said = ask(engine, server, None, *asks)
        bodies = list(server.server.bodies)
    assert content(said[0]) == {"sum": 1}
    assert [body.get("response_format") for body in bodies] == [FORM, None, None]
    assert [body.get("tool_choice") for body in bodies] == [None, named, "required"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"response_format": {"type": "grammar"}}, "is neither json_object nor a json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "a json_schema with its schema"),
        ({"response_format": FORM, "tools": CHAT_TOOLS}, "response_format beside tools: an answer"),
        ({"tool_choice": "required"}, "tool_choice='required': there is no such tool"),
        ({"tools": CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "no such tool"),
        ({"tools": CHAT_TOOLS, "tool_choice": {"type": "allowed_tools"}}, "is not known here; use 'auto'"),
        ({"tools": CHAT_TOOLS, "tool_choice": "required"}, "this model's chat template writes calls in another form"),
        (
            {"response_format": FORM, "chat_template_kwargs": {"enable_thinking": True}},
            "the prompt ends inside of <think>",
        ),
    ],
)
def test_what_cannot_be_honest_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    engine = LocalEngine()
    ((status, body),) = ask_here(engine, ASK | options)
    assert status == 400
    assert said in body["error"]["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("x", "tool 'f': its parameters are no JSON schema"),
        ({"$defs": ["Point"]}, "$defs of a tool's parameters is no object"),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}}, "$ref '#' of a tool's parameters does not point"),
    ],
)
def test_parameters_that_a_call_cannot_be_held_to_are_refused(parameters: Any, said: str, tokenizer: Any) -> None:
    """A reference to the root would mean the whole call, and the model would be held to another schema."""
    engine, tool = LocalEngine(), {"type": "function", "function": {"name": "f", "parameters": parameters}}
    ((status, body),) = ask_here(engine, ASK | {"tools": [tool], "tool_choice": "required"}, tokenizer)
    assert status == 400
    assert said in body["error"]["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    ("text", "reasoning", "json_text"),
    [
        ('{"say": "</think>"}', None, '{"say": "</think>"}'),
        ('<think>Hm.</think>\n{"sum": 1}', "Hm.", '{"sum": 1}'),
    ],
)
def test_reasoning_is_told_from_tags_in_json(text: str, reasoning: str | None, json_text: str) -> None:
    async def answer(request: ModelRequest) -> str:
        return text

    ((_, body),) = ask_here(LocalEngine(answer), ASK | {"response_format": FORM})
    message = body["choices"][0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, json_text)


def ask_here(engine: LocalEngine, body: dict[str, Any], tokenizer: Any = None) -> list[tuple[int, Any]]:
    """What an agent is answered by an engine in this process."""
    engine.info = EngineInfo(schemas=True)
    agent = EndpointAgent(("/chat/completions", body))
    with RolloutController(
        engine, tokenizer=tokenizer or ByteTokenizer(), settings=ControllerSettings(max_attempts=1)
    ) as controller:
        controller.initialize()
        controller.rollout_batch([{"q": "x"}], agent)
    return agent.said
