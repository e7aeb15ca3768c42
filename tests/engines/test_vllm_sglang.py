"""vLLM and SGLang: one contract for both, on stand-ins that answer as the real ones did (``recorded``)."""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engines.servers import STANDIN, attached, environment, run_rows, spec
from standin.engines import VLLM, SGLang
from standin.faults import Rule
from standin.server import OTHER, Standin, in_thread
from standin.tokens import ByteTokenizer

from pytest_areal_eval.allocation import Allocation
from pytest_areal_eval.api import EpisodeStatus, GenerationHyperparameters
from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController
from pytest_areal_eval.engines.base import Endpoint, Engine, TransientError
from pytest_areal_eval.engines.sglang import SGLangEngine
from pytest_areal_eval.engines.vllm import VLLMEngine
from pytest_areal_eval.errors import EngineLost, EngineStartError, RequestError
from pytest_areal_eval.schedulers.local import LocalScheduler

BAD = "Question 7."
KINDS: dict[str, tuple[type[VLLMEngine] | type[SGLangEngine], type[Standin]]] = {
    "vllm": (VLLMEngine, VLLM),
    "sglang": (SGLangEngine, SGLang),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)


def make(kind: str, **changes: Any) -> VLLMEngine | SGLangEngine:
    return KINDS[kind][0](spec(kind, **changes))


def argv(engine: Engine, name: str = "eval/0") -> str:
    launch = engine.launch(name, "secret")
    assert launch is not None
    return shlex.join(launch.argv)


# The command


def test_the_command_has_the_allocation_and_the_evaluations_defaults(kind: str) -> None:
    allocation = Allocation(kind, data_parallel_size=4, tp_size=2, pp_size=3)
    engine = make(kind, allocation=allocation, gpus=6)
    launch = engine.launch("eval/0", "secret")
    command = shlex.join(launch.argv)
    assert (engine.replicas, launch.gpus) == (4, 6)
    assert "-size 2" in command
    assert "pp-size 3" in command or "pipeline-parallel-size 3" in command
    for harmful in ("no-enable-prefix-caching", "disable-radix-cache", "max-model-len", "context-length", "fa3"):
        assert harmful not in command
    assert "--trust-remote-code" not in command
    assert "generation-config vllm" in command or "sampling-defaults openai" in command


def test_over_several_nodes_each_server_is_told_its_rank_and_where_they_meet(kind: str) -> None:
    launch = make(kind, allocation=Allocation(kind, tp_size=16), gpus=16).launch("eval/0", "secret")
    assert launch.gang is not None
    told = shlex.join(launch.gang.every)
    assert all(word in told for word in ("{rank}", "{nnodes}", "{master_addr}", "{master_port}"))
    if kind == "vllm":  # its API server has no --headless
        assert launch.argv[1:4] == ("-m", "vllm.entrypoints.cli.main", "serve")
        assert launch.gang.followers == ("--headless",)


def test_the_token_is_in_the_environment_and_never_in_the_command(kind: str) -> None:
    launch = make(kind).launch("eval/0", "secret")
    assert "secret" not in shlex.join(launch.argv)
    assert "secret" in launch.env.values()


def test_a_person_is_told_the_command_that_sglang_documents() -> None:
    """Ours reads the token from the environment, which nobody types."""
    launch = make("sglang", python="/env/bin/python").launch("r/0", "t0k3n")
    assert launch.typed is not None
    assert launch.typed[:4] == ("/env/bin/python", "-m", "sglang.launch_server", "--model-path")
    assert launch.argv[3:] == launch.typed[3:]


def test_settings_are_taken_by_areals_name_and_by_the_servers_flag(kind: str) -> None:
    command = argv(make(kind, args={"max_num_seqs": 8, "disable-radix-cache": True}))
    assert "--max-num-seqs 8" in command
    assert "--disable-radix-cache" in command


@pytest.mark.parametrize("args", [{"max_num_seqs": "abc"}, {"max_num_seqs": None}, {"no_max_num_seqs": True}])
def test_what_is_no_number_is_left_to_the_server_to_refuse(args: dict[str, Any]) -> None:
    engine = make("vllm", args=args)
    assert engine.info.concurrency == 256
    assert ("abc" in argv(engine)) == ("abc" in args.values())


def test_remote_code_is_trusted_by_option_alone(kind: str) -> None:
    assert "--trust-remote-code" in argv(make(kind, trust_remote_code=True))


def test_the_commands_head_can_be_replaced(kind: str) -> None:
    assert argv(make(kind, command=("podman", "run", "image"))).startswith("podman run image --model")


def test_vllm_serve_gets_the_model_by_its_place() -> None:
    command = argv(make("vllm", command=("vllm", "serve")))
    assert command.startswith("vllm serve /")
    assert "--model" not in command


def test_replicas_of_vllm_have_compile_caches_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    roots = {make("vllm").launch(f"eval/{i}", "t").env["VLLM_CACHE_ROOT"] for i in (0, 1)}
    assert len(roots) == 2


# Attached stand-ins


def test_rows_are_answered_by_ids_and_what_the_server_can_do_is_shown(kind: str) -> None:
    events: list[Event] = []
    with (
        in_thread(KINDS[kind][1], context_length=2048) as server,
        attached(make(kind), server, events=events) as controller,
    ):
        rollouts = run_rows(controller)
        info = controller.engine.info
    ready = [event.text for event in events if event.kind == "ready"]
    assert [r.reward for r in rollouts] == [1.0] * 12
    assert all(e.input_tokens and e.output_tokens for r in rollouts for e in r.episodes)
    assert (info.context_length, info.model) == (2048, "tiny-math")
    assert info.concurrency == (170 if kind == "vllm" else 64)
    assert f"tiny-math, context 2048, {info.concurrency} requests at once" in ready[0]


def test_messages_are_sent_where_there_is_no_tokenizer(kind: str) -> None:
    with in_thread(KINDS[kind][1]) as server, attached(make(kind), server, messages=True) as controller:
        rollouts = run_rows(controller, 3)
    assert [r.reward for r in rollouts] == [1.0] * 3
    assert all(e.output_tokens for r in rollouts for e in r.episodes)


def test_a_given_up_row_is_freed_at_the_server(kind: str) -> None:
    """C80: a request that nobody waits for does not keep its place."""
    with in_thread(KINDS[kind][1], faults=[Rule(BAD, "hang")]) as server:
        with attached(make(kind), server, episode_timeout_s=1.0) as controller:
            run_rows(controller)
        assert server.load.aborted == 1
        assert server.load.in_flight == 0


def test_the_episodes_of_an_item_go_to_one_replica(kind: str) -> None:
    """They share their prompt, which its cache then holds."""
    served = KINDS[kind][1]
    with in_thread(served, latency_s=0.01) as one, in_thread(served, latency_s=0.01) as two:
        with attached(make(kind), one, two, max_concurrency=16) as controller:
            rollouts = run_rows(controller, 24, group_size=4)
        shares = sorted(server.load.requests for server in (one, two))
    together = [len({e.replica for e in rollout.episodes}) == 1 for rollout in rollouts]
    assert sum(together) >= 12
    assert shares[0] >= 24


def test_a_doubled_bos_is_told_once() -> None:
    """C60."""

    class Doubling:
        bos_token_id, eos_token_id, pad_token_id = 7, 256, 257

        def apply_chat_template(self, messages: Any, **kwargs: Any) -> list[int]:
            return [7, 7, 65]

        def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
            return "A"

    events: list[Event] = []
    with (
        in_thread(VLLM) as server,
        attached(make("vllm"), server, tokenizer=Doubling(), events=events) as controller,
    ):
        run_rows(controller, 3)
    told = [event.text for event in events if event.kind == "warning"]
    assert told == ["the prompts begin with two BOS tokens (7): a doubled BOS lowers scores"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sglang_tells_that_it_ignores_seeds_where_they_matter(temperature: float) -> None:
    events: list[Event] = []
    gconfig = GenerationHyperparameters(temperature=temperature)
    with in_thread(SGLang) as server, attached(make("sglang"), server, events=events) as controller:
        run_rows(controller, 3, gconfig=gconfig)
    told = ["SGLang ignores seeds unless --engine-arg=enable-deterministic-inference is given"]
    assert [event.text for event in events if event.kind == "warning"] == told * (temperature > 0)


# Another checkpoint


async def reload(engine: VLLMEngine | SGLangEngine, url: str) -> None:
    async with aiohttp.ClientSession() as http:
        await engine.reload(Endpoint("server/0", url), http)


def test_sglang_loads_another_checkpoint() -> None:
    engine = make("sglang")
    engine.model = OTHER
    with in_thread(SGLang) as server:
        asyncio.run(reload(engine, server.url))
        assert server.server.model_path == OTHER


class OpenVLLM(VLLM):
    development = True


def untied(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": False, **config}))
    return str(folder)


@pytest.mark.parametrize("version", ["0.23.0", "0.32.0"])
def test_vllm_loads_another_checkpoint_and_forgets_what_it_cached(tmp_path: Path, version: str) -> None:
    engine = make("vllm")
    engine.model = untied(tmp_path)
    with in_thread(OpenVLLM) as server:
        server.server.version = version
        asyncio.run(reload(engine, server.url))
        assert (server.server.model_path, server.server.cached) == (str(tmp_path), False)


def test_vllm_that_keeps_its_prefix_cache_has_not_loaded_another_checkpoint(tmp_path: Path) -> None:
    engine = make("vllm")
    engine.model = untied(tmp_path)
    with in_thread(OpenVLLM) as server:
        server.server.keeps_cache = True
        with pytest.raises(TransientError, match=r"keeps its prefix cache: .*false"):
            asyncio.run(reload(engine, server.url))


def test_vllm_without_its_development_endpoints_loads_none(tmp_path: Path) -> None:
    engine = make("vllm")
    engine.model = untied(tmp_path)
    with in_thread(VLLM) as server, pytest.raises(RequestError, match="404"):
        asyncio.run(reload(engine, server.url))


@pytest.mark.parametrize("config", [{"tie_word_embeddings": True}, {"quantization_config": {"quant_method": "fp8"}}])
def test_vllm_is_not_asked_for_what_its_reload_gets_wrong(tmp_path: Path, config: dict[str, Any]) -> None:
    """Seen with 0.32 on a CPU: it went on with the output layer of the checkpoint before."""
    engine = make("vllm")
    engine.model = untied(tmp_path, **config)
    with in_thread(OpenVLLM) as server, pytest.raises(RequestError, match="tied or weights are quantized"):
        asyncio.run(reload(engine, server.url))


# Started stand-ins


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[LocalScheduler]:
    made = LocalScheduler(log_dir=tmp_path, gpus=())
    yield made
    made.close()


def started(
    engine: Engine, scheduler: LocalScheduler, events: list[Any] | None = None, **settings: Any
) -> RolloutController:
    chosen = ControllerSettings(**{"backoff_s": 0.02, "health_interval_s": 0.2, "restarts": 0, **settings})
    kept: list[Any] = [] if events is None else events
    return RolloutController(engine, scheduler, settings=chosen, tokenizer=ByteTokenizer(), on_event=kept.append)


def script(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setenv("STANDIN", json.dumps(options))


def own_command(kind: str) -> tuple[str, ...]:
    return (sys.executable, str(STANDIN), kind)


def test_the_real_command_starts_a_server_that_wants_the_token(
    kind: str, tmp_path: Path, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it take what lies where pytest was started for modules of its own."""
    for name in ("json", kind):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the suite')")
    monkeypatch.chdir(tmp_path)
    script(monkeypatch, start_s=0.5)
    python = environment(tmp_path / "env", kind, "99.0")
    with started(make(kind, python=python), scheduler) as controller:
        controller.initialize()
        assert [r.reward for r in run_rows(controller)] == [1.0] * 12
        url = f"{controller.endpoints[0].base_url}/v1/models"
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(url, timeout=5)
        refused.value.close()


def test_a_token_that_looks_like_a_flag_is_a_token(
    tmp_path: Path, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in 64 begins with a dash."""
    monkeypatch.setattr(secrets, "token_urlsafe", lambda size: "-token")
    with started(make("sglang", python=environment(tmp_path / "env", "sglang", "99.0")), scheduler) as controller:
        controller.initialize()
        assert [r.reward for r in run_rows(controller, 3)] == [1.0] * 3


def test_what_a_loading_server_does_is_told(
    kind: str, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, start_s=1.5)
    events: list[Any] = []
    with started(make(kind, command=own_command(kind)), scheduler, events) as controller:
        controller.initialize()
    told = [event.text for event in events if event.kind == "log"]
    does = "loads the weights" if kind == "vllm" else "captures graphs"
    assert any(does in text for text in told), told


def test_servers_start_while_the_tokenizer_loads(kind: str, scheduler: LocalScheduler) -> None:
    """A large vocabulary takes seconds, and the weights minutes: neither waits for the other."""
    begun = threading.Event()
    started_server = scheduler.start

    def start(*args: Any, **options: Any) -> Any:
        begun.set()
        return started_server(*args, **options)

    def load() -> ByteTokenizer:
        assert begun.wait(10), "the server is started only after the tokenizer"
        return ByteTokenizer()

    scheduler.start = start  # type: ignore[method-assign]
    engine = make(kind, command=own_command(kind))
    with RolloutController(engine, scheduler, tokenizer=load) as controller:
        controller.initialize()
        assert run_rows(controller, 1)[0].reward == 1.0


def test_an_unknown_flag_is_one_message_in_the_servers_words_and_tried_once(
    kind: str, scheduler: LocalScheduler
) -> None:
    engine = make(kind, command=own_command(kind), args={"no_such_flag": 3})
    events: list[Any] = []
    said = "unrecognized arguments: --no-such-flag 3"
    with (
        started(engine, scheduler, events, restarts=3) as controller,
        pytest.raises(EngineStartError, match=said) as caught,
    ):
        controller.initialize()
    assert "exited with code 2" in str(caught.value)
    assert not [event for event in events if event.kind == "restart"]


def test_a_model_that_does_not_fit_is_told_in_the_servers_words(
    kind: str, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C93: the cause is in the message, not only in a log."""
    script(monkeypatch, crash="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB.")
    with (
        started(make(kind, command=own_command(kind)), scheduler) as controller,
        pytest.raises(EngineStartError, match="OutOfMemoryError: CUDA out of memory"),
    ):
        controller.initialize()


def test_a_server_that_dies_keeps_what_was_finished(
    kind: str, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4: server dies after 25 rows."""
    script(monkeypatch, die_after=25, latency_s=0.02)
    with started(make(kind, command=own_command(kind)), scheduler, max_concurrency=4) as controller:
        controller.initialize()
        rollouts = run_rows(controller, 50)
        assert isinstance(controller.failure, EngineLost)
    statuses = [r.episodes[0].status for r in rollouts]
    assert statuses.count(EpisodeStatus.SCORED) >= 20
    assert set(statuses) == {EpisodeStatus.SCORED, EpisodeStatus.ENGINE_LOST}
