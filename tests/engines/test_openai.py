"""Servers that run already: which is spoken to how, which model is meant, what is refused."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest
from engines.servers import MODEL, STANDIN, attached, run_rows, spec
from standin.engines import VLLM, Hosted, SGLang
from standin.faults import Rule
from standin.http11 import Reply, Request
from standin.server import Standin, in_thread
from support.waiting import until

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController
from pytest_areal_eval.engines.base import Endpoint, TransientError
from pytest_areal_eval.engines.http import get_json
from pytest_areal_eval.engines.openai import OpenAIEngine
from pytest_areal_eval.engines.served import choose_model
from pytest_areal_eval.engines.vllm import VLLMEngine
from pytest_areal_eval.errors import EngineLost, EngineStartError, RequestError
from pytest_areal_eval.schedulers.local import LocalScheduler

KEY = "the-key"


class AsksFor:
    """A question, with a limit for its answer."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        await engine.chat([{"role": "user", "content": "q"}], max_new_tokens=self.limit)
        return 1.0


def engine(model: str | None, kind: str = "") -> OpenAIEngine:
    return OpenAIEngine([Endpoint("server/0", "http://nowhere")], model, kind)


@pytest.mark.parametrize("served", [VLLM, SGLang])
def test_servers_that_take_ids_get_ids(served: type[Standin]) -> None:
    with in_thread(served) as server, attached(engine("tiny-math"), server) as controller:
        rollouts = run_rows(controller, 3)
        info = controller.engine.info
    assert [r.reward for r in rollouts] == [1.0] * 3
    assert info.token_ids
    assert all(e.input_tokens > 3 for r in rollouts for e in r.episodes)


@pytest.mark.parametrize("served", [VLLM, SGLang])
@pytest.mark.parametrize("messages", [True, False])
def test_messages_to_a_server_that_takes_ids_are_told(served: type[Standin], messages: bool) -> None:
    made, events = OpenAIEngine([Endpoint("server/0", "http://nowhere")], "tiny-math", messages=messages), []
    with in_thread(served) as server, attached(made, server, messages=messages, events=events) as controller:
        assert run_rows(controller, 1)[0].reward == 1.0
    told = [e.text for e in events if e.kind == "warning"]
    assert ["would send token ids" in text for text in told if "messages" in text] == [True] * messages
    assert sum("ignores seeds" in text for text in told) == (served is SGLang)


def test_connections_are_kept_and_reused() -> None:
    """C110: a client that connects anew, or searches all its connections, costs more than the model at concurrency."""
    with in_thread(Hosted) as server, attached(engine("gpt-x"), server, max_concurrency=16) as controller:
        began = server.load.connections
        assert len(run_rows(controller, 400)) == 400
        assert server.load.connections - began <= 17  # one may be checking the server's health


def test_a_hosted_api_gets_messages_and_the_loss_is_told() -> None:
    events: list[Event] = []
    with in_thread(Hosted) as server, attached(engine("gpt-x"), server, events=events) as controller:
        rollouts = run_rows(controller, 3)
        assert controller.tokenizer is None
    assert [r.reward for r in rollouts] == [1.0] * 3
    assert ["the server tokenizes" in e.text for e in events if e.kind == "warning"] == [True]


def test_the_limits_other_name_is_learnt_once() -> None:
    """OpenAI's reasoning models refuse ``max_tokens``."""

    class Reasoning(Hosted):
        limit_names = frozenset({"max_completion_tokens"})

    with in_thread(Reasoning) as server, attached(engine("gpt-x"), server, max_concurrency=1) as controller:
        rollouts = run_rows(controller, 4)
        assert server.load.requests == 4
    assert [r.reward for r in rollouts] == [1.0] * 4


TOO_LARGE = "max_tokens is too large: {wanted}. This model supports at most 4096 completion tokens"
TOO_LONG = "This model's maximum context length is 8192 tokens. However, you requested {wanted} in the completion."


@pytest.mark.parametrize(("said", "requests"), [(TOO_LARGE, 1 + 4), (TOO_LONG, 2 * 4)])
def test_a_limit_that_a_hosted_model_cannot_hold_is_left_to_it(said: str, requests: int) -> None:
    """The default is 16,384 tokens, more than many have.  What the model itself cannot hold is learnt once."""

    class Small(Hosted):
        def refusal(self, path: str, body: Mapping[str, Any]) -> Reply | None:
            wanted = body.get("max_tokens", 0)
            message = said.format(wanted=wanted)
            return Reply(self.error(path, 400, message), 400) if wanted > 4096 else super().refusal(path, body)

    with in_thread(Small) as server, attached(engine("gpt-x"), server, max_concurrency=1) as controller:
        rollouts = [controller.submit({}, AsksFor(16384), item_id=f"row-{n}") for n in range(4)]
        assert [r.reward for r in controller.wait(ids=rollouts, timeout=30)] == [1.0] * 4
        assert len(server.server.bodies) == requests
        controller.submit({}, AsksFor(100), item_id="short")
        assert controller.wait(timeout=30)[0].reward == 1.0
    assert server.server.bodies[-1]["max_tokens"] == 100


@pytest.mark.parametrize("served", [VLLM, SGLang])
def test_messages_get_what_the_context_leaves_as_ids_do(served: type[Standin]) -> None:
    class Full(served):  # type: ignore[misc,valid-type]
        def refusal(self, path: str, body: Mapping[str, Any]) -> Reply | None:
            if (body.get("max_completion_tokens") or 0) < 1000:
                return super().refusal(path, body)  # type: ignore[no-any-return]
            message = "Requested token count exceeds the model's maximum context length of 1024 tokens."
            return Reply(self.error(path, 400, message), 400)

    made = engine("tiny-math")
    with in_thread(Full, context_length=1024) as server, attached(made, server, messages=True) as controller:
        controller.submit({}, AsksFor(1000), item_id="one")
        assert controller.wait(timeout=30)[0].reward == 1.0


@pytest.mark.parametrize("setting", ["top_k", "min_new_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens"])
def test_what_a_hosted_api_could_not_honour_is_refused_by_name(setting: str) -> None:
    value: Any = {"ignore_eos": True, "skip_special_tokens": False, "stop_token_ids": [2]}.get(setting, 5)

    class Asks:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
            await engine.chat([{"role": "user", "content": "q"}], **{setting: value})
            return 1.0

    with in_thread(Hosted) as server, attached(engine("gpt-x"), server) as controller:
        controller.submit({}, Asks(), item_id="one")
        episode = controller.wait(timeout=30)[0].episodes[0]
        assert server.load.requests == 0
    assert episode.status is EpisodeStatus.WORKFLOW_ERROR
    assert f"OpenAI's chat API has no {setting}" in episode.error


@pytest.mark.parametrize("served", [VLLM, SGLang, Hosted])
def test_a_wrong_key_is_one_message_before_any_row(served: type[Standin]) -> None:
    made = engine("tiny-math")
    with (
        in_thread(served, token="right") as server,
        pytest.raises(EngineStartError) as caught,
        attached(made, server, key="wrong"),
    ):
        pass
    assert "refuses the key of --api-key-env" in str(caught.value)
    assert "401" in str(caught.value)


@pytest.mark.parametrize("served", [VLLM, SGLang, Hosted])
def test_the_right_key_is_sent(served: type[Standin]) -> None:
    name = "gpt-x" if served is Hosted else "tiny-math"
    with in_thread(served, token=KEY) as server, attached(engine(name), server, key=KEY) as controller:
        assert run_rows(controller, 1)[0].reward == 1.0


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_a_refusal_that_every_row_would_get_ends_the_run_with_one_message(status: int) -> None:
    """Not 200 rows that each say it."""
    rule = Rule("", "status", status)
    with in_thread(Hosted, latency_s=0.05, faults=[rule]) as server, attached(engine("gpt-x"), server) as controller:
        rollouts = run_rows(controller, 200)
        assert isinstance(controller.failure, EngineLost)
        assert f"HTTP {status}" in str(controller.failure)
        assert server.load.requests <= 32
    assert {r.episodes[0].status for r in rollouts} <= {EpisodeStatus.ENGINE_LOST, EpisodeStatus.WORKFLOW_ERROR}


@pytest.mark.parametrize(
    ("rule", "said"), [(Rule("", "malformed"), "the body is no JSON"), (Rule("", "status", 500), "HTTP 500")]
)
def test_a_server_that_answers_nothing_at_all_is_not_asked_for_every_row(rule: Rule, said: str) -> None:
    """A gateway's page instead of answers would cost a thousand rows five attempts each, with their pauses."""
    limits: dict[str, Any] = {"max_concurrency": 4, "max_attempts": 2}
    with in_thread(Hosted, faults=[rule]) as server, attached(engine("gpt-x"), server, **limits) as controller:
        rollouts = run_rows(controller, 200)
        assert isinstance(controller.failure, EngineLost)
        assert f"no request was answered, and 8 have failed; the last: server/0 ({server.url})" in str(
            controller.failure
        )
        assert said in str(controller.failure)
        assert server.load.requests < 40
    assert {r.episodes[0].status for r in rollouts} == {EpisodeStatus.ENGINE_LOST, EpisodeStatus.WORKFLOW_ERROR}


def test_rows_that_fail_after_others_were_answered_end_no_run() -> None:
    rules = [Rule(f"Question {n}.", "malformed") for n in range(1, 12)]
    limits: dict[str, Any] = {"max_concurrency": 1, "max_attempts": 2}
    with in_thread(Hosted, faults=rules) as server, attached(engine("gpt-x"), server, **limits) as controller:
        rollouts = run_rows(controller)
        assert controller.failure is None
    assert [r.reward for r in rollouts].count(1.0) == 1


def test_one_forbidden_row_among_good_ones_costs_itself_alone() -> None:
    """A moderation filter answers 403 too."""
    rule = Rule("Question 7.", "status", 403)
    with in_thread(Hosted, faults=[rule]) as server, attached(engine("gpt-x"), server, max_concurrency=1) as controller:
        rollouts = run_rows(controller)
        assert controller.failure is None
    assert [r.reward for r in rollouts].count(1.0) == 11


def test_how_much_an_endpoint_takes_is_found_out() -> None:
    """It begins with 32, goes on to what the endpoint throttles at, and costs no row."""

    class Throttled(Hosted):
        def refusal(self, path: str, body: Any) -> Any:
            if self.load.in_flight >= 60:
                return Reply(self.error(path, 429, "slow down"), 429)
            return super().refusal(path, body)

    limits: dict[str, Any] = {"adaptive": True, "max_concurrency": None}
    with (
        in_thread(Throttled, latency_s=0.02) as server,
        attached(engine("gpt-x"), server, **limits) as controller,
    ):
        rollouts = run_rows(controller, 600)
        assert 48 < server.load.peak <= 60
    assert {r.reward for r in rollouts} == {1.0}


def test_a_model_that_is_not_served_is_told_with_those_that_are() -> None:
    made = engine("gpt-z")
    said = "it serves: gpt-x, gpt-y"
    with in_thread(Hosted) as server, pytest.raises(EngineStartError, match=said), attached(made, server):
        pass


def test_a_server_of_another_kind_than_was_said_is_refused() -> None:
    made = engine("tiny-math", "sglang")
    said = "is no sglang server: it says that it is vllm"
    with in_thread(VLLM) as server, pytest.raises(EngineStartError, match=said), attached(made, server):
        pass


def test_a_server_that_does_not_run_is_named_with_its_address() -> None:
    with in_thread(VLLM) as server:
        pass
    said = f"not ready within 0.1 s .--start-timeout.: .* cannot connect to {server.url.removeprefix('http://')}: "
    with (
        pytest.raises(EngineStartError, match=said),
        attached(engine("tiny-math"), server, start_timeout_s=0.1),
    ):
        pass


def test_a_server_that_never_answers_costs_the_time_that_was_given_and_no_more() -> None:
    class Mute(VLLM):
        def models(self, request: Request) -> Reply | None:
            return None

    said = "not ready within 0.1 s .--start-timeout.: .* gave no answer within 0.1 s"
    began = time.monotonic()
    with (
        in_thread(Mute) as server,
        pytest.raises(EngineStartError, match=said),
        attached(engine("tiny-math"), server, start_timeout_s=0.1),
    ):
        pass
    assert time.monotonic() - began < 5.0


class Page(VLLM):
    """A web server, or a gateway that has another one behind it."""

    body: ClassVar[Any] = b"<html><h1>Welcome to nginx!</h1></html>"

    def models(self, request: Request) -> Reply:
        return Reply(self.body)


class Failing(Page):
    body: ClassVar[Any] = {"error": {"message": "upstream unavailable"}}


class Listed(Page):
    body: ClassVar[Any] = (1, 2)


@pytest.mark.parametrize(
    ("served", "said"), [(Page, "Welcome to nginx"), (Failing, "upstream unavailable"), (Listed, "unexpected body")]
)
def test_what_answers_but_is_no_server_of_models_is_not_waited_for(served: type[Standin], said: str) -> None:
    began = time.monotonic()
    with (
        in_thread(served) as server,
        pytest.raises(EngineStartError, match=rf"does not answer as a server of models does: .*{said}"),
        attached(engine("tiny-math"), server),
    ):
        pass
    assert time.monotonic() - began < 10.0


def test_a_page_that_a_gateway_shows_for_a_moment_is_waited_for() -> None:
    class Opening(VLLM):
        asked = 0

        def models(self, request: Request) -> Reply:
            self.asked += 1
            return super().models(request) if self.asked > 2 else Reply(b"<html>please wait</html>")

    with in_thread(Opening) as server, attached(engine("tiny-math"), server) as controller:
        assert run_rows(controller, 1)[0].reward == 1.0


def test_a_started_server_that_is_another_program_is_not_waited_for_half_an_hour(tmp_path: Path) -> None:
    """``--engine-cmd`` of something that answers 200 to every path."""
    script = tmp_path / "pages.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(STANDIN.parents[1])!r})\n"
        "from standin import engines\n"
        "from standin.http11 import Reply\n"
        "engines.VLLM.models = lambda self, request: Reply(b'<html>hello</html>')\n"
        "engines.main('vllm', sys.argv[1:])\n"
    )
    scheduler = LocalScheduler(log_dir=tmp_path, gpus=())
    made = VLLMEngine(spec("vllm", command=(sys.executable, str(script))))
    with (
        RolloutController(made, scheduler, settings=ControllerSettings(restarts=3)) as controller,
        pytest.raises(EngineStartError, match=r"does not answer as a server of models does: .*hello"),
    ):
        controller.initialize()
    scheduler.close()


def test_another_protocol_is_told_in_a_line() -> None:
    """A wrong port: what listens there is SSH."""

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.write(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n")

    async def ask(address: str) -> None:
        listening = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening, aiohttp.ClientSession() as http:
            await get_json(http, Endpoint("server/0", f"{address}:{port}"), "/v1/models")

    with pytest.raises(TransientError, match=r"speaks no HTTP: .*SSH-2.0-OpenSSH") as caught:
        asyncio.run(ask("http://127.0.0.1"))
    assert "\n" not in str(caught.value)
    assert caught.value.foreign
    with pytest.raises(TransientError, match=r"speaks no TLS .*one without it takes http://"):
        asyncio.run(ask("https://127.0.0.1"))


class Twin(Hosted):
    served = ("tiny-math",)


class Other(VLLM):
    served_name = "other"


@pytest.mark.parametrize(
    ("kind", "options", "fact"),
    [
        (Twin, {}, "token ids"),
        (Other, {"context_length": 2048}, "model"),
        (VLLM, {"context_length": 100}, "context length"),
    ],
)
def test_servers_that_would_answer_otherwise_than_the_others_are_refused(
    kind: type[Standin], options: dict[str, Any], fact: str
) -> None:
    events: list[Event] = []
    with in_thread(VLLM, context_length=2048) as one, in_thread(kind, **options) as two:
        endpoints = [Endpoint("server/0", one.url), Endpoint("server/1", two.url)]
        made = OpenAIEngine(endpoints, None)
        with RolloutController(made, on_event=events.append) as controller:
            controller.initialize(server_infos=endpoints)
            until(lambda: any(e.kind == "gone" for e in events), "one server to be given up")
    assert any(f"differs from another --base-url: {fact} " in e.text for e in events if e.kind == "lost")


# Which model is meant

SERVED = [{"id": "policy", "root": "/ckpt/step-100"}, {"id": "base", "root": "/ckpt/base"}]


@pytest.mark.parametrize("wanted", ["policy", None])
def test_a_model_is_found_by_name_or_as_the_only_one(wanted: str | None) -> None:
    assert choose_model(SERVED[:1], wanted, "url")["id"] == "policy"


@pytest.mark.parametrize("root", [str(MODEL), MODEL.name, f"./{MODEL.parent.name}/{MODEL.name}/"])
def test_a_model_is_found_by_the_folder_that_was_loaded(root: str) -> None:
    models = [{"id": "other", "root": "/x"}, {"id": "policy", "root": root}]
    assert choose_model(models, str(MODEL), "url")["id"] == "policy"


class NamedSGLang(SGLang):
    served_name = "policy"


def test_sglang_is_found_by_the_folder_that_it_loaded_under_another_name() -> None:
    with in_thread(NamedSGLang) as server:
        server.server.model_path = str(MODEL)
        with attached(engine(str(MODEL)), server) as controller:
            assert run_rows(controller, 1)[0].reward == 1.0


def test_sglang_that_loaded_another_folder_is_refused_by_that() -> None:
    with in_thread(NamedSGLang) as server:
        server.server.model_path = str(MODEL)
        said = f"does not serve .*it serves: policy .from {MODEL}."
        with pytest.raises(EngineStartError, match=said), attached(engine(str(MODEL.parent)), server):
            pass


@pytest.mark.parametrize(
    ("models", "wanted", "said"),
    [
        (SERVED, None, "serves 2 models: policy .from /ckpt/step-100., base"),
        (SERVED, "nope", "does not serve 'nope'; it serves: policy"),
        (SERVED, str(MODEL), "does not serve .*tiny-math"),
        ([{"id": "other/tiny-math", "root": "/x/tiny-math"}], str(MODEL), "does not serve .*tiny-math"),
        ([], "nope", "it serves: none"),
        (None, None, "does not list its models"),
        (None, str(MODEL), "does not list its models"),
    ],
)
def test_an_unclear_model_is_refused(models: Any, wanted: str | None, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        choose_model(models, wanted, "http://here")


def test_an_endpoint_without_a_list_is_believed() -> None:
    assert choose_model(None, "gpt-x", "url") == {"id": "gpt-x"}


def test_the_folder_is_probed_where_the_server_does_not_say_what_it_is() -> None:
    """vLLM behind a gateway that renames the owner still gets ids."""

    class Renamed(VLLM):
        def models(self, request: Any) -> Any:
            reply = super().models(request)
            reply.body["data"][0] |= {"owned_by": "gateway", "root": str(Path(MODEL).resolve())}
            return reply

    with in_thread(Renamed) as server, attached(engine(str(MODEL)), server) as controller:
        assert controller.engine.info.token_ids
        assert run_rows(controller, 1)[0].reward == 1.0
