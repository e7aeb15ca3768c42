"""The parsers on answers that real servers gave, recorded by ``record.py``."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_areal_eval.api import GenerationHyperparameters, ModelRequest, ModelResponse
from pytest_areal_eval.engines import answers, wire
from pytest_areal_eval.engines.base import Endpoint, EngineInfo, TransientError
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.engines.http import server_message
from pytest_areal_eval.errors import PromptTooLong, RequestError

RECORDED = Path(__file__).parent / "recorded"
SERVERS = sorted(path.stem for path in RECORDED.glob("*.json"))
TEXT = "12 * 4 = 48. 12 + 48 = 60.\n#### 60"
INFO = EngineInfo(context_length=2048, model="tiny-math")

Parse = Callable[[Any], ModelResponse]


def recorded(server: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{server}.json").read_text())
    return found


def parser(server: str, form: str) -> Parse:
    if form == "chat":
        return answers.parse_chat
    return answers.parse_completion if server.startswith("vllm") else answers.parse_generate


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("form", ["ids", "chat"])
class TestRecordedAnswers:
    def test_a_whole_answer(self, server: str, form: str) -> None:
        response = parser(server, form)(recorded(server)[f"{form}_stop"]["body"])
        assert (response.text, response.stop_reason, response.stop_string) == (TEXT, "stop", None)
        assert (response.input_count, response.output_count, len(response.output_tokens)) == (19, 28, 28)
        assert response.output_tokens[-1] == 2
        assert response.output_logprobs == []

    def test_what_answered_is_known_by_the_servers_own_name_for_it(self, server: str, form: str) -> None:
        response = parser(server, form)(recorded(server)[f"{form}_stop"]["body"])
        weights = "default" if server.startswith("sglang") else ""
        named = "tiny-math" if form == "chat" or not weights else ""
        assert response.served == ", weights ".join(filter(None, [named, weights]))

    def test_an_answer_cut_by_its_limit(self, server: str, form: str) -> None:
        response = parser(server, form)(recorded(server)[f"{form}_length"]["body"])
        assert (response.text, response.stop_reason, response.output_len) == ("12 * 4", "length", 5)

    def test_a_stop_string_is_told_and_cut_off_the_text_but_not_the_ids(self, server: str, form: str) -> None:
        """C64: which stop ended an answer is known."""
        response = parser(server, form)(recorded(server)[f"{form}_stop_string"]["body"])
        assert (response.stop_reason, response.stop_string) == ("stop", "####")
        assert "####" not in str(response.text)
        assert response.output_len == 24

    def test_log_probabilities_of_the_sampled_tokens(self, server: str, form: str) -> None:
        response = parser(server, form)(recorded(server)[f"{form}_logprobs"]["body"])
        assert len(response.output_logprobs) == response.output_len == 28
        assert response.output_logprobs[0] == pytest.approx(-0.0567, abs=1e-3)

    def test_an_answer_that_is_held_to_a_schema(self, server: str, form: str) -> None:
        response = parser(server, form)(recorded(server)[f"{form}_schema"]["body"])
        assert json.loads(str(response.text)) == {"answer": 12, "unit": "apples"}
        assert response.stop_reason == "stop"

    def test_all_servers_give_the_same_ids(self, server: str, form: str) -> None:
        """Greedy in float32 on one machine."""
        response = parser(server, form)(recorded(server)[f"{form}_stop"]["body"])
        assert response.output_tokens == answers.parse_chat(recorded(SERVERS[0])["chat_stop"]["body"]).output_tokens


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    ("case", "status", "said"),
    [
        ("unauthorized", 401, "Unauthorized"),
        ("ids_too_long", 400, "2048"),
        ("bad_value", 400, "temperature"),
        ("ids_bad_schema", 400, 'Unsupported type "nonsense"'),
        ("unknown_path", 404, "Not Found"),
    ],
)
def test_an_error_says_what_the_server_said(server: str, case: str, status: int, said: str) -> None:
    answer = recorded(server)[case]
    assert answer["status"] == status
    assert said in server_message(json.dumps(answer["body"]).encode())


@pytest.mark.parametrize("body", [{"choices": []}, {}, [], None, {"choices": [{"finish_reason": "odd"}], "usage": {}}])
@pytest.mark.parametrize("parse", [answers.parse_chat, answers.parse_completion, answers.parse_generate])
def test_a_body_of_another_form_is_no_answer(parse: Parse, body: Any) -> None:
    with pytest.raises((KeyError, TypeError, IndexError, ValueError)):
        parse(body)


COMPLETION = {"text": "4", "token_ids": [5, 2], "finish_reason": "stop"}
NOT_WHAT_THEY_ARE_CALLED: list[Any] = [
    {"choices": ["4"]},
    {"choices": [{**COMPLETION, "text": {"answer": 4}}]},
    {"choices": [{**COMPLETION, "token_ids": ["5"]}]},
    {"choices": [{**COMPLETION, "token_ids": [5.0]}]},
    {"choices": [{**COMPLETION, "token_ids": [-5]}]},
    {"choices": [{**COMPLETION, "token_ids": [2**40]}]},
    {"choices": [{**COMPLETION, "logprobs": {"token_logprobs": [math.nan, -0.5]}}]},
    {"choices": [COMPLETION], "usage": {"prompt_tokens": math.inf, "completion_tokens": 1}},
    {"choices": [COMPLETION], "usage": {"prompt_tokens": 3, "completion_tokens": -1}},
    "overloaded",
]


@pytest.mark.parametrize("wrong", NOT_WHAT_THEY_ARE_CALLED)
def test_a_field_that_is_not_what_it_is_called_fails_the_attempt_alone(
    wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One NaN must not end the run in the journal, nor a picture of a dict be graded."""

    async def answer(*_: Any) -> Any:
        return {"usage": {"prompt_tokens": 3, "completion_tokens": 2}, **wrong} if isinstance(wrong, dict) else wrong

    monkeypatch.setattr(wire, "post_json", answer)
    http: Any = None
    asked = wire.exchange(http, Endpoint("server/0", ""), "/v1/completions", request(), {}, answers.parse_completion)
    with pytest.raises(TransientError, match="unexpected body"):
        asyncio.run(asked)


def test_a_filtered_answer_is_an_error_and_not_an_empty_one() -> None:
    choice = {"message": {"content": None}, "finish_reason": "content_filter"}
    with pytest.raises(RequestError, match="content filter"):
        answers.parse_chat({"choices": [choice], "usage": {}})


def test_null_content_with_reasoning_is_an_empty_text_with_its_reasoning() -> None:
    """C67: reasoning models answer null when their tokens run out."""
    choice = {"message": {"content": None, "reasoning_content": "Let me"}, "finish_reason": "length"}
    response = answers.parse_chat({"choices": [choice]})
    assert (response.text, response.reasoning, response.stop_reason) == ("", "Let me", "length")


def request(**sampling: Any) -> ModelRequest:
    tokenizer = SimpleNamespace(eos_token_id=2, pad_token_id=0)
    return ModelRequest(rid="r", input_ids=[1, 5], gconfig=GenerationHyperparameters(**sampling), tokenizer=tokenizer)


@pytest.mark.parametrize("form", [wire.completion_body, wire.generate_body, wire.chat_body])
def test_every_sampling_setting_is_sent_also_at_its_default(form: Callable[..., dict[str, Any]]) -> None:
    body = form(request(), INFO)
    sent = body.get("sampling_params", body)
    assert {name: sent[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")} == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert {"stop", "stop_token_ids", "frequency_penalty", "presence_penalty", "ignore_eos"} <= sent.keys()


@pytest.mark.parametrize("form", [wire.completion_body, wire.generate_body, wire.chat_body])
def test_what_was_set_is_sent(form: Callable[..., dict[str, Any]]) -> None:
    body = form(
        request(
            greedy=True,
            top_k=5,
            stop=["a"],
            stop_token_ids=[7],
            frequency_penalty=0.5,
            min_new_tokens=3,
            max_new_tokens=9,
            seed=11,
            skip_special_tokens=False,
        ),
        INFO,
    )
    sent = body.get("sampling_params", body)
    assert sent["temperature"] == 0.0
    assert (sent["top_k"], sent["stop"], sent["stop_token_ids"], sent["frequency_penalty"]) == (5, ["a"], [7], 0.5)
    assert 3 in (sent.get("min_tokens"), sent.get("min_new_tokens"))
    assert 9 in (sent.get("max_tokens"), sent.get("max_new_tokens"), sent.get("max_completion_tokens"))
    assert 11 in (sent.get("seed"), sent.get("sampling_seed"))
    assert sent["skip_special_tokens"] is False


@pytest.mark.parametrize("form", [wire.completion_body, wire.generate_body, wire.chat_body])
@pytest.mark.parametrize("top_k", [0, -1])
def test_no_top_k_is_said_as_every_server_takes_it(form: Callable[..., dict[str, Any]], top_k: int) -> None:
    """Seen: SGLang 0.5.23 answers 400 to 0, which vLLM and the embedded engine take for "off"."""
    body = form(request(top_k=top_k), INFO)
    assert body.get("sampling_params", body)["top_k"] == -1


def test_ignore_eos_takes_the_tokenizers_own_ends_out_of_the_stop_tokens() -> None:
    body = wire.completion_body(request(ignore_eos=True, stop_token_ids=[7, 2, 0]), INFO)
    assert body["stop_token_ids"] == [7]


class Vocabulary:
    eos_token_id, pad_token_id = 2, 0

    def __len__(self) -> int:
        return 896


@pytest.mark.parametrize("form", [wire.completion_body, wire.generate_body, wire.chat_body])
@pytest.mark.parametrize("wrong", [896, 10_000_000, -1])
def test_a_stop_token_of_another_vocabulary_is_refused_before_it_is_sent(
    form: Callable[..., dict[str, Any]], wrong: int
) -> None:
    """SGLang 0.5.23 died of 10,000,000, and with it every row that it was at."""
    asks = replace(request(stop_token_ids=[2, 895, wrong]), tokenizer=Vocabulary())
    with pytest.raises(RequestError, match=rf"stop_token_ids=\[{wrong}\]: the tokenizer has 896 tokens"):
        form(asks, INFO)
    form(replace(request(stop_token_ids=[2, 895]), tokenizer=Vocabulary()), INFO)


def test_log_probabilities_are_asked_for_only_where_wanted() -> None:
    wanted = request()
    assert wire.completion_body(wanted, INFO)["logprobs"] is None
    wanted.metadata["logprobs"] = True
    assert wire.completion_body(wanted, INFO)["logprobs"] == 0
    assert wire.generate_body(wanted, INFO)["return_logprob"] is True


def test_the_answer_gets_what_the_context_leaves_and_a_full_one_is_refused() -> None:
    """C62: no prompt is cut silently."""
    assert wire.completion_body(request(max_new_tokens=5000), INFO)["max_tokens"] == 2046
    with pytest.raises(PromptTooLong, match="2 tokens"):
        wire.completion_body(request(), EngineInfo(context_length=2))


def test_a_schema_is_refused_where_the_engine_has_no_grammar() -> None:
    asks = replace(request(), metadata={"response_format": {"type": "json_object"}})
    with pytest.raises(RequestError, match="response_format: this hf engine cannot hold an answer to a JSON schema"):
        asyncio.run(HFEngine("tiny-math").generate(asks, None, None))  # type: ignore[arg-type]


def test_beam_search_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="vllm engine has no beam search"):
        wire.refuse_settings(request(use_beam_search=True), "vllm")


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [None], [1]])
def test_what_no_answer_can_end_with_is_refused_by_name(stop: Any) -> None:
    """vLLM and SGLang say 400 to an empty one, and the embedded engine took it for none."""
    with pytest.raises(RequestError, match="stop strings are texts, and none is empty"):
        wire.refuse_settings(request(stop=stop), "hf")


def test_an_adapter_is_refused_by_name() -> None:
    """Unsaid, the answers would be the base model's."""
    with pytest.raises(RequestError, match=r"gconfig.lora_name='step-9': the vllm engine chooses no adapter"):
        wire.refuse_settings(request(lora_name="step-9"), "vllm")
    wire.refuse_settings(request(), "vllm")


def test_every_setting_is_sent_or_refused_or_read_before_the_request() -> None:
    """One that AReaL adds must not be left out unsaid."""
    sent = {"temperature", "top_p", "top_k", "frequency_penalty", "stop", "stop_token_ids", "ignore_eos"}
    sent |= {"skip_special_tokens", "max_new_tokens", "min_new_tokens", "seed"}
    refused, read = {"use_beam_search", "lora_name"}, {"n_samples", "greedy", "max_tokens"}
    assert {f.name for f in fields(GenerationHyperparameters)} == sent | refused | read
