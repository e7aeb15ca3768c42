"""The embedded engine's client side: the command, the requests, the errors."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.embedded_server import CHECKPOINT, RunningServer

from pytest_areal_eval.api import GenerationHyperparameters, ModelRequest, ModelResponse
from pytest_areal_eval.engines.base import Endpoint, TransientError
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.engines.http import server_message
from pytest_areal_eval.errors import PromptTooLong, RequestError

GREEDY = GenerationHyperparameters(greedy=True, max_new_tokens=100)


def with_http(work: Callable[[aiohttp.ClientSession], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with aiohttp.ClientSession() as http:
            return await work(http)

    return asyncio.run(run())


def endpoint(server: RunningServer) -> Endpoint:
    return Endpoint("hf/0", server.url, server.token)


def ask(server: RunningServer, request: ModelRequest, engine: HFEngine | None = None) -> ModelResponse:
    engine = engine or HFEngine(str(CHECKPOINT), context_length=512)
    return with_http(lambda http: engine.generate(request, endpoint(server), http))


def test_the_command_has_placeholders_and_keeps_the_token_out_of_argv() -> None:
    launch = HFEngine("/ckpt", dtype="bfloat16", context_length=512, max_batch=4, trust_remote_code=True).launch(
        "hf/0", "the-secret"
    )
    line = " ".join(launch.argv)
    assert "--host {host} --port {port} --nonce {nonce}" in line
    assert "--model /ckpt" in line
    assert "--dtype bfloat16 --max-batch 4 --context-length 512 --trust-remote-code" in line
    assert "the-secret" not in line
    assert "the-secret" in launch.env.values()


def test_a_module_of_the_users_in_the_working_directory_is_not_taken_for_another(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('the wrong one')")
    argv = HFEngine("/ckpt").launch("hf/0", "").argv
    head = argv[: argv.index("--model")]
    done = subprocess.run([*head, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr


def test_discover_reads_the_limits(server: RunningServer) -> None:
    engine = HFEngine(str(CHECKPOINT))
    info = with_http(lambda http: engine.discover(endpoint(server), http))
    assert (info.context_length, info.concurrency, info.model) == (512, 8, "tiny")
    assert engine.info == info


def test_ids_and_messages_give_the_same_answer(
    server: RunningServer, prompts: list[list[int]], questions: list[str]
) -> None:
    by_ids = ask(server, ModelRequest(input_ids=prompts[0], gconfig=GREEDY, metadata={"logprobs": True}))
    messages = [{"role": "user", "content": questions[0]}]
    by_chat = ask(server, ModelRequest(messages=messages, gconfig=GREEDY, metadata={"logprobs": True}))
    assert by_ids.output_tokens == by_chat.output_tokens
    assert by_ids.input_tokens == by_chat.input_tokens == prompts[0]
    assert by_ids.text == by_chat.text
    assert by_ids.output_logprobs == pytest.approx(by_chat.output_logprobs, abs=1e-4)
    assert len(by_ids.output_logprobs) == by_ids.output_len
    assert (by_ids.stop_reason, by_ids.replica) == ("stop", "hf/0")


def test_every_sampling_setting_reaches_the_server(server: RunningServer, prompts: list[list[int]]) -> None:
    plain = ask(server, ModelRequest(input_ids=prompts[0], gconfig=GREEDY))
    assert plain.output_logprobs == []
    stopped = ask(server, ModelRequest(input_ids=prompts[0], gconfig=GREEDY.new(stop=["####"])))
    assert (stopped.stop_reason, stopped.stop_string) == ("stop", "####")
    cut = ask(server, ModelRequest(input_ids=prompts[0], gconfig=GREEDY.new(max_new_tokens=5)))
    assert (cut.stop_reason, cut.output_tokens) == ("length", plain.output_tokens[:5])
    longer = ask(server, ModelRequest(input_ids=prompts[0], gconfig=GREEDY.new(ignore_eos=True, stop_token_ids=[2])))
    assert (longer.stop_reason, longer.output_len) == ("length", 100)
    hot = GREEDY.new(greedy=False, temperature=2.5, ignore_eos=True, seed=3)
    answers = [ask(server, ModelRequest(input_ids=prompts[0], gconfig=hot.new(**c))) for c in ({}, {}, {"seed": 4})]
    assert answers[0].output_tokens == answers[1].output_tokens != answers[2].output_tokens
    narrow = ask(server, ModelRequest(input_ids=prompts[0], gconfig=hot.new(top_k=1, ignore_eos=False)))
    assert narrow.output_tokens == plain.output_tokens


def test_template_arguments_are_sent_with_messages(server: RunningServer, tokenizer: Any) -> None:
    request = ModelRequest(messages=[{"role": "user", "content": "hi"}], gconfig=GREEDY.new(max_new_tokens=1))
    request.template_kwargs = {"enable_thinking": True, "tools": [{"type": "function", "function": {"name": "f"}}]}
    prompt = tokenizer.decode(ask(server, request).input_tokens)
    assert prompt.endswith("<think>\n")
    assert '"name": "f"' in prompt


def test_a_budget_over_the_context_is_cut_to_it(server: RunningServer, prompts: list[list[int]]) -> None:
    request = ModelRequest(input_ids=prompts[0], gconfig=GREEDY.new(max_new_tokens=16384, ignore_eos=True))
    assert ask(server, request).output_len == 512 - len(prompts[0])
    chat = ModelRequest(messages=[{"role": "user", "content": "hi"}], gconfig=GREEDY.new(max_new_tokens=16384))
    assert ask(server, chat).output_len > 0


def test_a_prompt_that_fills_the_context_is_too_long_before_any_request() -> None:
    """C62: an over-long prompt is an error with both numbers, never cut."""
    nowhere = RunningServer(1, None)  # type: ignore[arg-type]
    with pytest.raises(PromptTooLong, match="600 tokens, and the model's context length is 512"):
        ask(nowhere, ModelRequest(input_ids=[5] * 600, gconfig=GREEDY))
    with pytest.raises(PromptTooLong, match=r"gconfig\.max_tokens is 10"):
        ask(nowhere, ModelRequest(input_ids=[5] * 10, gconfig=GREEDY.new(max_tokens=10)))


def test_a_refused_request_is_permanent_and_says_why(server: RunningServer) -> None:
    request = ModelRequest(input_ids=[5000], gconfig=GREEDY)
    with pytest.raises(RequestError, match=r"hf/0 POST /generate: HTTP 400: .*from 0 to 895") as caught:
        ask(server, request)
    assert caught.value.status == 400


def test_abort_ends_the_request_at_once(server: RunningServer, prompts: list[list[int]]) -> None:
    engine = HFEngine(str(CHECKPOINT), context_length=512)
    request = ModelRequest(input_ids=prompts[0], gconfig=GREEDY.new(max_new_tokens=450, ignore_eos=True))

    async def work(http: aiohttp.ClientSession) -> ModelResponse:
        pending = asyncio.create_task(engine.generate(request, endpoint(server), http))
        await asyncio.sleep(0.05)
        await engine.abort(request, endpoint(server), http)
        return await pending

    with pytest.raises(TransientError, match="the server aborted the request"):
        with_http(work)


def test_abort_of_a_dead_replica_is_quick_and_silent() -> None:
    started = time.monotonic()
    with_http(lambda http: HFEngine("/ckpt").abort(ModelRequest(), Endpoint("hf/0", "http://127.0.0.1:1"), http))
    assert time.monotonic() - started < 2


class FaultyServer:
    """Answers every request the same way, in a thread of its own."""

    def __init__(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
        self._answer = (status, body, headers)
        self._ready, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        status, body, headers = self._answer

        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=status, text=body, headers=headers)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._ended.wait()
        await runner.cleanup()

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)


def failure(url: str) -> Exception:
    request = ModelRequest(input_ids=[5, 6], gconfig=GREEDY)
    with pytest.raises((TransientError, RequestError)) as caught:
        with_http(lambda http: HFEngine("/ckpt").generate(request, Endpoint("hf/0", url), http))
    return caught.value


@pytest.mark.parametrize(
    ("status", "body"),
    [(429, "slow down"), (500, "{}"), (503, ""), (200, "no json"), (200, "{}"), (200, "[]"), (200, '{"meta_info": 3}')],
)
def test_what_may_pass_is_transient(status: int, body: str) -> None:
    with FaultyServer(status, body) as faulty:
        error = failure(faulty.url)
    assert isinstance(error, TransientError)
    assert not error.lost
    assert "hf/0 POST /generate" in str(error)


def test_retry_after_is_read() -> None:
    with FaultyServer(429, "{}", {"Retry-After": "2.5"}) as faulty:
        error = failure(faulty.url)
    assert isinstance(error, TransientError)
    assert (error.retry_after_s, error.status) == (2.5, 429)


def test_other_statuses_are_permanent() -> None:
    with FaultyServer(422, '{"detail": "no such thing"}') as faulty:
        error = failure(faulty.url)
    assert isinstance(error, RequestError)
    assert "no such thing" in str(error)


def test_a_refused_connection_may_mean_a_lost_replica() -> None:
    error = failure("http://127.0.0.1:1")
    assert isinstance(error, TransientError)
    assert error.lost


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"error": {"message": "vllm says", "code": 404}}', "vllm says"),
        (b'{"object": "error", "message": "sglang says", "code": 400}', "sglang says"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"other": 1}', '{"other": 1}'),
        (b"plain", "plain"),
        (b"", "(empty body)"),
    ],
)
def test_every_shape_of_error_body_is_read(raw: bytes, message: str) -> None:
    assert server_message(raw) == message
