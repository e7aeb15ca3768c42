"""The embedded server over HTTP: answers, seeds, stops, errors, slots, and how it starts and ends."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import changed
from support.embedded_server import CHECKPOINT, RunningServer, end, start_server, wait_until_ready

LONG = {"max_new_tokens": 400, "ignore_eos": True}
EOS = [2, 0]


def generated(model: Any, prompt: list[int], tokens: int = 128) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def test_greedy_answers_equal_generate_at_any_concurrency(
    server: RunningServer, plain_model: Any, prompts: list[list[int]]
) -> None:
    expected = [generated(plain_model, p) for p in prompts]
    for concurrency in (1, 12):
        with ThreadPoolExecutor(concurrency) as pool:
            answers = list(pool.map(server.generate, prompts))
        assert [a["output_ids"] for a in answers] == expected
    assert answers[0]["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    assert answers[0]["meta_info"]["prompt_tokens"] == len(prompts[0])
    assert answers[0]["meta_info"]["completion_tokens"] == len(expected[0])


def test_logprobs_are_those_of_a_plain_forward(
    server: RunningServer, plain_model: Any, prompts: list[list[int]]
) -> None:
    body = {"input_ids": prompts[0], "return_logprob": True}
    body["sampling_params"] = {"temperature": 0.7, "sampling_seed": 5, "max_new_tokens": 24}
    _, answer = server.post("/generate", body)
    ids = torch.tensor([prompts[0] + answer["output_ids"]])
    with torch.inference_mode():
        expected = plain_model(ids).logits[0].log_softmax(-1)[len(prompts[0]) - 1 : -1]
    expected = expected.gather(1, torch.tensor(answer["output_ids"])[:, None])[:, 0].tolist()
    got = answer["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in got] == answer["output_ids"]
    assert [logprob for logprob, _, _ in got] == pytest.approx(expected, abs=1e-4)


def test_a_seed_gives_the_same_answer_alone_and_in_a_crowd(server: RunningServer, prompts: list[list[int]]) -> None:
    def ask(seed: int) -> list[int]:
        ids: list[int] = server.generate(prompts[0], temperature=1.5, sampling_seed=seed, **LONG)["output_ids"][:64]
        return ids

    alone = [ask(1), ask(2)]
    with ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(ask, [1, 2, 3, 4, 5, 6, 7, 8]))
    assert crowd[:2] == alone
    assert len({tuple(c) for c in crowd}) == 8


def test_without_a_seed_draws_differ(server: RunningServer, prompts: list[list[int]]) -> None:
    answers = [tuple(server.generate(prompts[0], temperature=2.0, **LONG)["output_ids"]) for _ in range(2)]
    assert answers[0] != answers[1]


def test_n_answers_differ_and_repeat_with_their_seed(server: RunningServer, prompts: list[list[int]]) -> None:
    settings = {"temperature": 2.5, "n": 3, "sampling_seed": 11, "max_new_tokens": 80, "ignore_eos": True}
    first, second = (server.generate(prompts[0], **settings) for _ in range(2))
    assert [a["output_ids"] for a in first] == [a["output_ids"] for a in second]
    assert len({tuple(a["output_ids"]) for a in first}) == 3


def test_a_stop_string_trims_the_text_and_is_named(server: RunningServer, prompts: list[list[int]]) -> None:
    whole = server.generate(prompts[0])["text"]
    answer = server.generate(prompts[0], stop=["####", "no such text"])
    assert answer["text"] == whole[: whole.index("####")]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "####"}
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"])


def test_stop_tokens_and_ignore_eos(server: RunningServer, prompts: list[list[int]]) -> None:
    plain = server.generate(prompts[0])["output_ids"]
    token = plain[4]
    stopped = server.generate(prompts[0], stop_token_ids=[token])
    assert stopped["output_ids"] == plain[: plain.index(token) + 1]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
    ignored = server.generate(prompts[0], ignore_eos=True, max_new_tokens=150, stop_token_ids=EOS)
    assert ignored["meta_info"]["finish_reason"] == {"type": "length", "length": 150}
    assert ignored["output_ids"][: len(plain)] == plain


def test_min_new_tokens_keeps_the_end_away(server: RunningServer, prompts: list[list[int]]) -> None:
    plain = server.generate(prompts[0])["output_ids"]
    longer = server.generate(prompts[0], min_new_tokens=len(plain) + 3)["output_ids"]
    assert longer[: len(plain) - 1] == plain[:-1]
    assert len(longer) > len(plain) + 3


def test_more_requests_than_slots_are_all_answered(server: RunningServer, prompts: list[list[int]]) -> None:
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda p: server.generate(p, max_new_tokens=20, ignore_eos=True), prompts))
    assert [len(a["output_ids"]) for a in answers] == [20] * 24


def test_an_abort_answers_with_what_there_is_and_frees_the_slots(
    server: RunningServer, prompts: list[list[int]]
) -> None:
    body = {"input_ids": prompts[0], "rid": "to-abort", "sampling_params": LONG | {"n": 64, "temperature": 1.0}}
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(server.post, "/generate", body)
        time.sleep(0.3)
        assert server.post("/abort_request", {"rid": "to-abort"})[0] == 200
        status, answers = pending.result(timeout=5)
    assert status == 200
    kinds = {a["meta_info"]["finish_reason"]["type"] for a in answers}
    assert "abort" in kinds
    assert server.generate(prompts[0], max_new_tokens=1)["output_ids"]


def test_a_client_that_goes_away_frees_its_slots(server: RunningServer, prompts: list[list[int]]) -> None:
    body = json.dumps({"input_ids": prompts[0], "sampling_params": LONG | {"n": 500}})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/generate", body, {"Authorization": f"Bearer {server.token}"})
    time.sleep(0.3)
    connection.close()
    started = time.monotonic()
    server.generate(prompts[1], max_new_tokens=1)
    assert time.monotonic() - started < 5  # 500 answers of 400 tokens take over 30 s


@pytest.mark.parametrize("path", ["/model_info", "/v1/models"])
def test_everything_but_health_wants_the_token(server: RunningServer, path: str) -> None:
    for wrong in ("", "guess"):
        status, body = server.get(path, token=wrong)
        assert (status, body["error"]["type"]) == (401, "AuthenticationError")
    assert server.get(path)[0] == 200
    assert server.get("/health", token="") == (200, {"status": "ready", "nonce": "n-123"})


def test_model_info_tells_the_limits(server: RunningServer) -> None:
    info = server.get("/model_info")[1]
    assert (info["context_length"], info["max_batch"], info["dtype"]) == (512, 8, "float32")
    assert (info["served_model_name"], info["decoder"]) == ("tiny", "lean")


BAD_BODIES = [
    ("/generate", b"{", 400, "no JSON"),
    ("/generate", [], 400, "JSON object"),
    ("/generate", {}, 400, "either `text` or `input_ids`"),
    ("/generate", {"input_ids": []}, 400, "empty"),
    ("/generate", {"input_ids": [5000]}, 400, "from 0 to 895"),
    ("/generate", {"input_ids": [5], "sampling_params": {"max_tokens": 5}}, 400, "unknown field `max_tokens`"),
    ("/generate", {"input_ids": [5], "sampling_params": {"temperature": -1}}, 400, "`temperature` is -1"),
    ("/generate", {"input_ids": [5], "sampling_params": {"top_p": 0}}, 400, "above 0"),
    ("/generate", {"input_ids": [5], "sampling_params": {"n": True}}, 400, "`n` is True"),
    ("/generate", {"input_ids": [5], "stream": True}, 400, "`stream` is True"),
    ("/generate", {"input_ids": [5] * 500, "sampling_params": {"max_new_tokens": 13}}, 400, "500 tokens"),
    ("/v1/chat/completions", {"messages": []}, 400, "`messages`"),
    ("/v1/chat/completions", {"model": "gpt", "messages": [{"role": "user"}]}, 404, "'gpt' does not exist"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400, "chat template"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}},
        400,
        "`response_format`",
    ),
    ("/v1/completions", {"prompt": [[5], 7]}, 400, "`prompt`"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 600}, 400, "context length is 512"),
    ("/nothing", {}, 404, "Not Found"),
]


@pytest.mark.parametrize(("path", "body", "status", "says"), BAD_BODIES)
def test_a_bad_body_is_refused_with_its_reason(
    server: RunningServer, path: str, body: Any, status: int, says: str
) -> None:
    got, answer = server.post(path, body)
    assert got == status
    assert says in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["code"] == status


def test_a_prompt_over_the_context_names_both_numbers(server: RunningServer) -> None:
    _, answer = server.post("/generate", {"input_ids": [5] * 500, "sampling_params": {"max_new_tokens": 13}})
    assert "500 tokens" in answer["error"]["message"]
    assert "13 more" in answer["error"]["message"]
    assert server.generate([5] * 500, max_new_tokens=12, ignore_eos=True)["meta_info"]["completion_tokens"] == 12


def test_chat_applies_the_template_and_counts(
    server: RunningServer, prompts: list[list[int]], questions: list[str]
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": questions[0]}], "temperature": 0}
    body |= {"return_token_ids": True, "logprobs": True, "max_completion_tokens": 100}
    _, answer = server.post("/v1/chat/completions", body)
    expected = server.generate(prompts[0])
    choice = answer["choices"][0]
    assert answer["prompt_token_ids"] == prompts[0]
    assert (choice["message"]["content"], choice["token_ids"]) == (expected["text"], expected["output_ids"])
    assert (choice["finish_reason"], len(choice["logprobs"]["content"])) == ("stop", len(expected["output_ids"]))
    assert answer["usage"]["prompt_tokens"] == len(prompts[0])
    assert answer["usage"]["completion_tokens"] == len(expected["output_ids"])


def test_template_arguments_and_tools_reach_the_template(server: RunningServer, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"messages": messages, "max_tokens": 1, "return_token_ids": True, "tools": tools}
    _, answer = server.post("/v1/chat/completions", body | {"chat_template_kwargs": {"enable_thinking": True}})
    text = tokenizer.decode(answer["prompt_token_ids"])
    assert '"name": "f"' in text
    assert text.endswith("<think>\n")


def test_a_streamed_chat_adds_up_to_the_whole_one(server: RunningServer, questions: list[str]) -> None:
    body = {"messages": [{"role": "user", "content": questions[0]}], "temperature": 0, "n": 2, "stop": ["####"]}
    whole = server.post("/v1/chat/completions", body)[1]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    request = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}})
    connection.request("POST", "/v1/chat/completions", request, {"Authorization": f"Bearer {server.token}"})
    lines = connection.getresponse().read().decode().split("\n\n")
    connection.close()
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert chunks[-1]["usage"] == whole["usage"]
    for index in (0, 1):
        choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert len(choices) > 5
        assert "".join(c["delta"]["content"] for c in choices) == whole["choices"][index]["message"]["content"]
        assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_completions_take_strings_and_ids(server: RunningServer, prompts: list[list[int]], tokenizer: Any) -> None:
    text = tokenizer.decode(prompts[0])
    body = {"temperature": 0, "max_tokens": 60, "return_token_ids": True, "logprobs": 1}
    expected = server.generate(prompts[0], max_new_tokens=60)
    for prompt in (text, [text, text], prompts[0], [prompts[0], prompts[0]]):
        _, answer = server.post("/v1/completions", body | {"prompt": prompt})
        count = 2 if isinstance(prompt[0], list) or (isinstance(prompt, list) and isinstance(prompt[0], str)) else 1
        assert [c["text"] for c in answer["choices"]] == [expected["text"]] * count
        assert [c["index"] for c in answer["choices"]] == list(range(count))
        assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == len(expected["output_ids"])
        assert answer["usage"]["prompt_tokens"] == len(prompts[0]) * count


def test_health_says_503_until_the_model_is_ready_and_sigterm_ends_it_mid_request(
    prompts: list[list[int]],
) -> None:
    server = start_server("--max-batch", "2")
    try:
        assert 503 in wait_until_ready(server)
        with ThreadPoolExecutor(1) as pool:
            body = {"input_ids": prompts[0], "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True, "n": 8}}
            pending = pool.submit(server.post, "/generate", body)
            time.sleep(0.3)
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=10) == 0
            assert time.monotonic() - started < 5
            assert isinstance(pending.exception(timeout=5), ConnectionError | http.client.HTTPException | OSError)
    finally:
        errors = end(server)
    assert errors.startswith("ready: ")
    assert "Traceback" not in errors


def broken_checkpoint(path: Path, fault: str) -> Path:
    shutil.copytree(CHECKPOINT, path)
    weights = path / "model.safetensors"
    if fault == "torn weights":
        weights.write_bytes(weights.read_bytes()[:5000])
    elif fault == "missing weight":
        from safetensors.torch import load_file, save_file

        tensors = load_file(weights)
        del tensors["model.layers.3.mlp.up_proj.weight"]
        save_file(tensors, weights, {"format": "pt"})
    elif fault == "no config":
        (path / "config.json").unlink()
    return path


FAULTS = {
    "no directory": "no directory",
    "torn weights": "cannot serve the checkpoint",
    "missing weight": "lacks 1 weights, the first of them model.layers.3.mlp.up_proj.weight",
    "no config": "cannot serve the checkpoint",
}


@pytest.fixture(scope="module")
def unservable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, tuple[Path, RunningServer]]]:
    """A server for each fault, all started at once."""
    folder = tmp_path_factory.mktemp("unservable")
    paths = {fault: folder / fault.replace(" ", "-") for fault in FAULTS}
    for fault, path in paths.items():
        if fault != "no directory":
            broken_checkpoint(path, fault)
    started = {fault: (path, start_server(model=path)) for fault, path in paths.items()}
    yield started
    for _, server in started.values():
        end(server)


@pytest.mark.parametrize(("fault", "says"), FAULTS.items())
def test_a_broken_checkpoint_ends_with_one_short_message(
    unservable: Mapping[str, tuple[Path, RunningServer]], fault: str, says: str
) -> None:
    path, server = unservable[fault]
    _, errors = server.process.communicate(timeout=120)
    assert server.process.returncode == 78
    assert says in errors
    assert str(path) in errors
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()) <= 3, errors


def test_another_checkpoint_takes_the_models_place(tmp_path: Path, plain_model: Any, prompts: list[list[int]]) -> None:
    """What ran before ends as aborted; what cannot be loaded ends the server."""
    path = changed(tmp_path / "other")
    other = type(plain_model).from_pretrained(path, dtype=torch.float32).eval()
    server = start_server()
    try:
        wait_until_ready(server)
        assert server.generate(prompts[0])["output_ids"] == generated(plain_model, prompts[0])
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(server.generate, prompts[0], max_new_tokens=1900, ignore_eos=True)
            time.sleep(0.2)
            status, answer = server.post("/update_weights_from_disk", {"model_path": str(path)})
            assert running.result()["meta_info"]["finish_reason"]["type"] == "abort"
        assert (status, answer["success"]) == (200, True)
        assert server.generate(prompts[0])["output_ids"] == generated(other, prompts[0])
        assert server.get("/model_info")[1]["model_path"] == str(path)
        with pytest.raises((ConnectionError, http.client.HTTPException, OSError)):
            server.post("/update_weights_from_disk", {"model_path": str(tmp_path)})
        assert server.process.wait(timeout=10) == 78
    finally:
        errors = end(server)
    assert f"cannot serve the checkpoint {tmp_path}" in errors
    assert "Traceback" not in errors
