"""The four APIs through the SDKs that speak them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from standin.engine import LocalEngine
from standin.tokens import ByteTokenizer

from pytest_areal_eval.api import Episode, GenerationHyperparameters, ModelRequest, ModelResponse
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.errors import RequestError
from pytest_areal_eval.workflows import context

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
CALL = 'One moment. <tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>'
ASK = {"model": "default", "messages": [{"role": "user", "content": "6*7?"}]}
Talk = Callable[[Any], Awaitable[Any]]


def talk(
    body: Talk, *answers: Any, tokenizer: Any = None, gconfig: GenerationHyperparameters | None = None
) -> SimpleNamespace:
    """Run ``body(where)`` as an episode; ``where`` holds the address and clients.

    Returns what ``body`` returned (``said``), the engine's requests and the episode.
    """
    left = list(answers) or ["42"]

    async def answer(request: ModelRequest) -> Any:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    kept: list[Any] = []

    async def workflow(engine: Any, item: dict[str, Any]) -> float:
        agents = context.get().agents
        async with agents.proxy.session(engine) as session, agents.clients.client() as http_client:
            kept.append(await body(Where(session.base_url, session.key, http_client)))
        return 1.0

    engine = LocalEngine(answer)
    with RolloutController(engine, tokenizer=tokenizer, settings=ControllerSettings(max_attempts=1)) as controller:
        controller.initialize()
        options: dict[str, Any] = {"gconfig": gconfig} if gconfig else {}
        episode: Episode = controller.rollout_batch([{"q": "x"}], workflow, **options)[0].episodes[0]
    assert not episode.error, episode.error + episode.traceback
    return SimpleNamespace(said=kept[0], requests=engine.requests, episode=episode)


class Where:
    """An address, and clients for it."""

    def __init__(self, base_url: str, key: str, http: Any) -> None:
        self.base_url, self.key, self.http = base_url, key, http

    @property
    def openai(self) -> Any:
        openai = pytest.importorskip("openai")
        return openai.AsyncOpenAI(base_url=self.base_url, api_key=self.key, http_client=self.http)

    @property
    def anthropic(self) -> Any:
        anthropic = pytest.importorskip("anthropic")
        return anthropic.AsyncAnthropic(base_url=self.base_url, api_key=self.key, http_client=self.http)

    async def post(self, path: str, **options: Any) -> Any:
        """Any body, with the key unless other headers are given."""
        options = {"headers": {"Authorization": f"Bearer {self.key}"}} | options
        return await self.http.post(self.base_url + path, **options)


def tool(name: str = "add") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "Add.", "parameters": SCHEMA}}


# Chat completions


def test_a_chat_answer_has_text_reasoning_and_usage() -> None:
    async def body(where: Where) -> Any:
        return await where.openai.chat.completions.create(**ASK)

    response = ModelResponse(text="<think>hm</think>42", stop_reason="length", input_count=5, output_count=3)
    said = talk(body, response).said
    (choice,) = said.choices
    assert (choice.message.content, choice.message.reasoning_content, choice.finish_reason) == ("42", "hm", "length")
    assert (said.usage.prompt_tokens, said.usage.completion_tokens, said.usage.total_tokens) == (5, 3, 8)
    assert said.id.startswith("chatcmpl-")


def test_tools_reach_the_template_and_calls_come_back() -> None:
    async def body(where: Where) -> Any:
        return await where.openai.chat.completions.create(**ASK, tools=[tool()])

    done = talk(body, CALL)
    (choice,) = done.said.choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 40, "b": 2})
    assert (choice.message.content, choice.finish_reason) == ("One moment.", "tool_calls")
    assert done.requests[0].template_kwargs["tools"] == [tool()]


def test_a_tool_call_that_is_no_json_is_content() -> None:
    async def body(where: Where) -> Any:
        return await where.openai.chat.completions.create(**ASK, tools=[tool()])

    (choice,) = talk(body, "<tool_call>{not json}</tool_call>").said.choices
    assert (choice.message.content, choice.message.tool_calls) == ("<tool_call>{not json}</tool_call>", None)
    assert choice.finish_reason == "stop"


def test_calls_that_the_server_split_off_are_passed_on() -> None:
    async def body(where: Where) -> Any:
        return await where.openai.chat.completions.create(**ASK, tools=[tool()])

    calls = [{"id": "c1", "name": "add", "arguments": "{}"}]
    (choice,) = talk(body, ModelResponse(text="", stop_reason="tool_calls", tool_calls=calls)).said.choices
    assert [(c.id, c.function.name) for c in choice.message.tool_calls] == [("c1", "add")]


def test_a_chat_stream_adds_up_to_the_answer() -> None:
    async def body(where: Where) -> Any:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await where.openai.chat.completions.create(**ASK, tools=[tool()], **options)
        return [chunk async for chunk in stream]

    chunks = talk(body, ModelResponse(text=CALL, input_count=5, output_count=9)).said
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "One moment."
    (call,) = [c for delta in deltas for c in delta.tool_calls or ()]
    assert (call.index, call.function.name) == (0, "add")
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
    assert chunks[-1].usage.total_tokens == 14


def test_with_a_tokenizer_the_template_is_applied_here() -> None:
    async def body(where: Where) -> Any:
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "6"}, {"type": "text", "text": "*7?"}]},
        ]
        options = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
        return await where.openai.chat.completions.create(model="m", messages=messages, **options)

    done = talk(body, "so</think>42", tokenizer=ByteTokenizer())
    prompt = ByteTokenizer().decode(done.requests[0].input_ids)
    assert prompt == "<system>Be brief.</system>\n<user>6*7?</user>\n<assistant><think>\n"
    assert (done.said.choices[0].message.content, done.said.choices[0].message.reasoning_content) == ("42", "so")


def test_several_answers_are_several_requests_with_seeds_of_their_own() -> None:
    """AReaL refuses n above 1."""

    async def body(where: Where) -> Any:
        whole = await where.openai.chat.completions.create(**ASK, n=3, seed=7)
        stream = await where.openai.chat.completions.create(**ASK, n=2, stream=True)
        return whole, [chunk async for chunk in stream]

    answers = [ModelResponse(text=text, input_count=5, output_count=2) for text in "abcde"]
    done = talk(body, *answers)
    whole, chunks = done.said
    assert sorted(choice.message.content for choice in whole.choices) == ["a", "b", "c"]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 6)
    assert sorted(request.gconfig.seed for request in done.requests[:3]) == [7, 8, 9]
    texts = dict.fromkeys((0, 1), "")
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert sorted(texts.values()) == ["d", "e"]
    assert (done.episode.requests, len(done.episode.transcript)) == (5, 5)


def test_one_refusal_of_several_ends_them_all() -> None:
    async def body(where: Where) -> Any:
        openai = pytest.importorskip("openai")
        with pytest.raises(openai.APIStatusError) as caught:
            await where.openai.chat.completions.create(**ASK, n=3)
        return caught.value.status_code

    assert talk(body, "a", RequestError("full", status=507), "b").said == 507


def test_log_probabilities_come_back_token_by_token() -> None:
    async def body(where: Where) -> Any:
        return await where.openai.chat.completions.create(**ASK, logprobs=True)

    response = ModelResponse(text="42", output_tokens=list(b"42"), output_logprobs=[-0.5, -0.25])
    done = talk(body, response, tokenizer=ByteTokenizer())
    content = done.said.choices[0].logprobs.content
    assert [(entry.token, entry.logprob, entry.bytes) for entry in content] == [("4", -0.5, [52]), ("2", -0.25, [50])]
    assert done.requests[0].metadata["logprobs"]


DATA = "data:image/png;base64,YQ=="


@pytest.mark.parametrize("tokenizer", [None, ByteTokenizer()], ids=["messages", "ids"])
def test_a_picture_of_any_api_goes_to_the_server_in_the_conversation(tokenizer: Any) -> None:
    async def body(where: Where) -> None:
        parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}]
        await where.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}])
        items = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": DATA, "detail": "auto"}]
        await where.openai.responses.create(model="m", input=[{"role": "user", "content": items}])
        source = {"type": "base64", "media_type": "image/png", "data": "YQ=="}
        blocks = [{"type": "text", "text": "What?"}, {"type": "image", "source": source}]
        await where.anthropic.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": blocks}])

    done = talk(body, tokenizer=tokenizer)
    picture = {"type": "image_url", "image_url": {"url": DATA}}
    wanted = [{"role": "user", "content": [{"type": "text", "text": "What?"}, picture]}]
    assert [request.messages for request in done.requests] == [wanted] * 3
    assert "YQ==" not in json.dumps(done.episode.transcript)
    assert done.episode.transcript[0]["messages"][0]["content"][1] == {"type": "image_url"}


# Completions and models


def test_a_text_is_continued() -> None:
    async def body(where: Where) -> Any:
        plain = await where.openai.completions.create(model="m", prompt="6*7=", max_tokens=3)
        ids = await where.openai.completions.create(model="m", prompt=[1, 2])
        stream = await where.openai.completions.create(model="m", prompt="x", stream=True)
        return plain, ids, [chunk async for chunk in stream]

    done = talk(body, "42", tokenizer=Encoder())
    plain, ids, chunks = done.said
    assert (plain.choices[0].text, ids.choices[0].text, chunks[0].choices[0].text) == ("42", "42", "42")
    assert [r.input_ids for r in done.requests] == [list(b"6*7="), [1, 2], list(b"x")]
    assert done.requests[0].gconfig.max_new_tokens == 3


class Encoder(ByteTokenizer):
    """Takes the argument that ``transformers`` has."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


def test_the_model_is_listed() -> None:
    async def body(where: Where) -> Any:
        return [model.id async for model in where.openai.models.list()]

    assert talk(body).said == ["default"]


# Responses


def test_a_response_has_text_and_usage() -> None:
    async def body(where: Where) -> Any:
        return await where.openai.responses.create(model="m", instructions="Be brief.", input="6*7?")

    done = talk(body, ModelResponse(text="42", input_count=5, output_count=3))
    assert (done.said.output_text, done.said.status, done.said.usage.total_tokens) == ("42", "completed", 8)
    assert [m["content"] for m in done.requests[0].messages] == ["Be brief.", "6*7?"]


def test_a_conversation_goes_on_from_an_answer() -> None:
    """Its instructions do not: each request has its own."""

    async def body(where: Where) -> Any:
        tools = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]
        first = await where.openai.responses.create(model="m", instructions="Add.", input="40+2?", tools=tools)
        call = first.output[-1]
        result = [{"type": "function_call_output", "call_id": call.call_id, "output": "42.0"}]
        more = {"previous_response_id": first.id, "tools": tools}
        await where.openai.responses.create(model="m", instructions="Say it.", input=result, **more)
        return call.call_id

    done = talk(body, CALL, "42")
    system, user, assistant, tool_result = done.requests[1].messages
    assert (system["content"], user["content"], assistant["content"]) == ("Say it.", "40+2?", "One moment.")
    assert (assistant["tool_calls"][0]["id"], tool_result["tool_call_id"]) == (done.said, done.said)
    assert [entry["repeated"] for entry in done.episode.transcript] == [0, 0]


def test_a_conversation_with_calls_becomes_chat_messages() -> None:
    async def body(where: Where) -> Any:
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "40+2?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 40, "b": 2}'},
            {"type": "function_call_output", "call_id": "c1", "output": "42.0"},
        ]
        tools = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}]
        return await where.openai.responses.create(model="m", input=items, tools=tools)

    done = talk(body, CALL)
    (request,) = done.requests
    assert [m["role"] for m in request.messages] == ["user", "assistant", "tool"]
    assert request.messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 40, "b": 2}'}
    assert request.messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "42.0"}
    assert request.template_kwargs["tools"][0]["function"]["strict"] is True
    assert [item.type for item in done.said.output] == ["message", "function_call"]


def test_a_response_stream_ends_with_the_whole_response() -> None:
    async def body(where: Where) -> Any:
        tools = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]
        async with where.openai.responses.stream(model="m", input="40+2?", tools=tools) as stream:
            events = [event async for event in stream]
            return events, await stream.get_final_response()

    events, final = talk(body, f"<think>hm</think>{CALL}").said
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output_text == "One moment."
    assert [e.sequence_number for e in events] == sorted(e.sequence_number for e in events)
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_a_response_that_was_cut_is_incomplete() -> None:
    async def body(where: Where) -> Any:
        return await where.openai.responses.create(model="m", input="x", max_output_tokens=2)

    said = talk(body, ModelResponse(text="4", stop_reason="length")).said
    assert (said.status, said.incomplete_details.reason) == ("incomplete", "max_output_tokens")


# Messages


def test_anthropics_messages_carry_tools_in_both_directions() -> None:
    async def body(where: Where) -> Any:
        used = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 40, "b": 2}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42.0"}]}
        messages = [
            {"role": "user", "content": "40+2?"},
            {"role": "assistant", "content": [{"type": "text", "text": "Well."}, used]},
            {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
        ]
        tools = [{"name": "add", "description": "Add.", "input_schema": SCHEMA}]
        return await where.anthropic.messages.create(
            model="m", max_tokens=50, system="Be brief.", messages=messages, tools=tools
        )

    done = talk(body, ModelResponse(text=CALL, input_count=5, output_count=3))
    (request,) = done.requests
    assert [m["role"] for m in request.messages] == ["system", "user", "assistant", "tool", "user"]
    assert json.loads(request.messages[2]["tool_calls"][0]["function"]["arguments"]) == {"a": 40, "b": 2}
    assert request.template_kwargs["tools"] == [tool()]
    assert request.gconfig.max_new_tokens == 50
    text, use = done.said.content
    assert (text.text, use.name, use.input, done.said.stop_reason) == (
        "One moment.",
        "add",
        {"a": 40, "b": 2},
        "tool_use",
    )
    assert (done.said.usage.input_tokens, done.said.usage.output_tokens) == (5, 3)


def test_an_anthropic_stream_adds_up_to_the_message() -> None:
    async def body(where: Where) -> Any:
        tools = [{"name": "add", "input_schema": SCHEMA}]
        messages = ASK["messages"]
        async with where.anthropic.messages.stream(model="m", max_tokens=50, messages=messages, tools=tools) as stream:
            return await stream.get_final_message()

    said = talk(body, f"<think>hm</think>{CALL}").said
    assert [block.type for block in said.content] == ["thinking", "text", "tool_use"]
    assert (said.content[2].input, said.stop_reason) == ({"a": 40, "b": 2}, "tool_use")


def test_a_call_whose_arguments_are_no_json_reaches_anthropics_client_as_they_are() -> None:
    async def body(where: Where) -> Any:
        return await where.anthropic.messages.create(model="m", max_tokens=50, messages=ASK["messages"])

    calls = [{"id": "c1", "name": "add", "arguments": '{"a": 40, '}]
    (block,) = talk(body, ModelResponse(text="", stop_reason="tool_calls", tool_calls=calls)).said.content
    assert (block.name, block.input) == ("add", {"arguments": '{"a": 40, '})


def test_stream_options_of_another_form_ask_for_nothing() -> None:
    async def body(where: Where) -> Any:
        return await where.post("/v1/chat/completions", json=ASK | {"stream": True, "stream_options": "usage"})

    assert talk(body).said.text.endswith("data: [DONE]\n\n")


def test_anthropics_client_gets_errors_in_its_own_form() -> None:
    async def body(where: Where) -> Any:
        anthropic = pytest.importorskip("anthropic")
        with pytest.raises(anthropic.BadRequestError) as caught:
            await where.anthropic.messages.create(model="m", max_tokens=50, messages=[])
        where.key = "another"
        with pytest.raises(anthropic.AuthenticationError):
            await where.anthropic.messages.create(model="m", max_tokens=50, messages=ASK["messages"])
        return caught.value.body

    said = talk(body).said
    assert said["error"]["type"] == "invalid_request_error"
    assert "at least one message" in said["error"]["message"]


# Bad input


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer other"}, {"x-api-key": "areal-x"}])
def test_a_key_of_no_running_episode_is_refused(headers: dict[str, str]) -> None:
    async def body(where: Where) -> Any:
        return [await where.post(p, headers=headers, json=ASK) for p in ("/chat/completions", "/v1/responses")]

    done = talk(body)
    assert [(r.status_code, r.json()["error"]["code"]) for r in done.said] == [(401, "invalid_api_key")] * 2
    assert done.requests == []


def test_a_key_is_worth_nothing_after_its_episode() -> None:
    async def first(where: Where) -> Any:
        return where.key

    async def body(where: Where) -> Any:
        response = await where.post("/v1/chat/completions", json=ASK, headers={"x-api-key": talk_once})
        return response.status_code

    talk_once = talk(first).said
    assert talk(body).said == 401


@pytest.mark.parametrize(
    ("path", "options", "status", "said"),
    [
        ("/chat/completions", {"content": b"{"}, 400, "no JSON"),
        ("/chat/completions", {"content": b"\xff"}, 400, "no JSON"),
        ("/chat/completions", {"content": b"[]"}, 400, "no JSON object"),
        ("/chat/completions", {"json": {}}, 400, "messages must be a list"),
        ("/chat/completions", {"json": {"messages": ["x"]}}, 400, "messages[0] is no message"),
        ("/chat/completions", {"json": ASK | {"n": 0}}, 400, "n=0 is not a whole number from 1 to 128"),
        ("/chat/completions", {"json": ASK | {"n": True}}, 400, "n=True is not a whole number"),
        (
            "/chat/completions",
            {"json": ASK | {"logprobs": True}},
            400,
            "logprobs: this engine does not tell its tokens",
        ),
        ("/chat/completions", {"json": ASK | {"top_logprobs": 5}}, 400, "top_logprobs=5 cannot be honoured"),
        ("/completions", {"json": {"prompt": "a", "logprobs": 1}}, 400, "logprobs=1 cannot be honoured"),
        ("/responses", {"json": {"input": "x", "n": 2}}, 400, "n=2 cannot be honoured"),
        ("/chat/completions", {"json": ASK | {"temperature": -1}}, 400, "temperature=-1 is not a number of at least 0"),
        ("/chat/completions", {"json": ASK | {"max_tokens": True}}, 400, "max_tokens=True is not"),
        ("/chat/completions", {"json": ASK | {"stop": {"a": 1}}}, 400, "stop="),
        ("/chat/completions", {"json": ASK | {"tools": [{"type": "web"}]}}, 400, "only tools of the form"),
        ("/chat/completions", {"json": ASK | {"tools": 3}}, 400, "tools=3 is no list"),
        ("/chat/completions", {"json": ASK | {"chat_template_kwargs": 3}}, 400, "must be an object"),
        (
            "/responses",
            {"json": {"input": "x", "text": {"format": {"type": "json_object"}}}},
            400,
            "text.format: this engine cannot hold an answer to a JSON schema",
        ),
        ("/responses", {"json": {"input": "x", "text": 3}}, 400, "another form than this API's"),
        ("/chat/completions", {"json": ASK | {"tool_choice": "required"}}, 400, "no such tool among the tools"),
        ("/chat/completions", {"json": ASK | {"tools": [tool()], "tool_choice": "required"}}, 400, "tool_choice: this"),
        (
            "/chat/completions",
            {"json": ASK | {"response_format": {"type": "json_object"}}},
            400,
            "response_format: this",
        ),
        (
            "/chat/completions",
            {"json": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}},
            400,
            "messages[0]: an image must be in the request itself, as base64 (a data: URI)",
        ),
        ("/completions", {"json": {"prompt": ["a", "b"]}}, 400, "prompt must be one text"),
        ("/responses", {"json": {"input": []}}, 400, "input must be"),
        ("/responses", {"json": {"input": [{"type": "computer_call"}]}}, 400, "items of type 'computer_call'"),
        ("/responses", {"json": {"input": "x", "previous_response_id": "r"}}, 400, "'r': no answer of this episode"),
        ("/responses", {"json": {"input": "x", "tools": [{"type": "web_search"}]}}, 400, "a tool of type 'web_search'"),
        ("/embeddings", {"json": {}}, 404, "/embeddings: there are /chat/completions"),
    ],
)
def test_a_request_that_cannot_be_met_says_why(path: str, options: dict[str, Any], status: int, said: str) -> None:
    async def body(where: Where) -> Any:
        response = await where.post(path, **options)
        return response.status_code, response.json()["error"]["message"], response.headers["x-should-retry"]

    found, message, retry = talk(body).said
    assert (found, retry) == (status, "false")
    assert said in message


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_body_of_50_megabytes_is_refused_and_the_connection_survives() -> None:
    async def body(where: Where) -> Any:
        large = await where.post("/chat/completions", content=b"x" * (50 << 20))
        usual = await where.post("/chat/completions", json=ASK)
        return large.status_code, large.json()["error"]["message"], usual.status_code

    assert talk(body).said == (413, "the body is larger than 32 MiB", 200)


def test_an_engines_refusal_is_not_retried_by_the_sdk() -> None:
    async def body(where: Where) -> Any:
        openai = pytest.importorskip("openai")
        with pytest.raises(openai.APIStatusError) as caught:
            await where.openai.chat.completions.create(**ASK)
        return caught.value.status_code

    done = talk(body, RequestError("overloaded for good", status=503))
    assert (done.said, len(done.requests)) == (503, 1)
