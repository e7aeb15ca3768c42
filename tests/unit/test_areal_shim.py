"""``from areal.… import …`` with and without AReaL, and that what is imported behaves as AReaL's."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from standin.engine import LocalEngine

import pytest_areal_eval
from pytest_areal_eval import areal_shim, plugin
from pytest_areal_eval.api import EpisodeStatus, GenerationHyperparameters, ModelRequest, ModelResponse
from pytest_areal_eval.areal_shim.surface import SURFACE
from pytest_areal_eval.controller import RolloutController
from pytest_areal_eval.rewards.importing import import_from_string

NAMES = [(module, name) for module, names in SURFACE.items() for name in names]


@pytest.fixture
def shim() -> Iterator[None]:
    """The shim, on for a test."""
    assert areal_shim.install()
    yield
    areal_shim.uninstall()


def imported(statement: str) -> dict[str, Any]:
    """The names that an import statement binds."""
    found: dict[str, Any] = {}
    exec(statement, found)
    return found


def test_nothing_on_disk_is_named_areal() -> None:
    root = Path(pytest_areal_eval.__file__).parents[1]
    assert not (root / "areal").exists()
    assert not (root / "areal.py").exists()


def test_without_the_shim_areal_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'areal'"):
        imported("import areal.api")


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_every_name_leads_somewhere(shim: None, module: str, name: str) -> None:
    if "openai" in module:
        pytest.importorskip("openai")
    assert imported(f"from {module} import {name}")[name] is not None


@pytest.mark.parametrize(
    "statement",
    [
        "from areal import workflow_context",
        "from areal.infra import workflow_context",
        "from areal.api import AsyncRewardWrapper, InferenceEngine, ModelRequest, ModelResponse, RolloutWorkflow",
        "from areal.utils import logging, perf_tracer, stats_tracker",
        "import areal.utils.stats_tracker as stats_tracker",
        "from areal.utils.hf_utils import load_hf_processor_and_tokenizer, load_hf_tokenizer",
    ],
)
def test_the_import_lines_of_areals_own_files_work(shim: None, statement: str) -> None:
    imported(statement)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("from areal.api import ModelReqest", r"cannot import 'ModelReqest' from 'areal.api'.*\n.*ModelRequest"),
        ("from areal.api.cli_args import GrpoConfig", r"no areal.api.cli_args.GrpoConfig\n.*GenerationHyperparameters"),
        ("import areal.models.qwen", r"cannot import 'models' from 'areal'.*\nareal has: api, core, dataset"),
        ("import areal.api.sandbox_api", r"no areal.api.sandbox_api\n.*workflow_api.*install AReaL"),
    ],
)
def test_a_name_that_is_not_here_is_an_import_error_that_says_what_is(shim: None, statement: str, said: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=said):
        imported(statement)


TRAINING_SCRIPT = """
from areal import PPOTrainer, workflow_context
from areal.api import FinetuneSpec, ModelRequest
from areal.api.cli_args import GenerationHyperparameters, GRPOConfig, dataclass, field, load_expr_config
from areal.engine.sglang_remote import RemoteSGLangEngine
from areal.utils import seeding, stats_tracker

@dataclass
class TheirConfig(GRPOConfig):
    turns: int = field(default=2)

def main(args):
    seeding.set_random_seed(1, key="train")
"""


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("PPOTrainer(None)", "areal.PPOTrainer"),
        ("TheirConfig(turns=3)", "areal.api.cli_args.GRPOConfig"),
        ("load_expr_config([], TheirConfig)", "areal.api.cli_args.load_expr_config"),
        ("RemoteSGLangEngine()", "areal.engine.sglang_remote.RemoteSGLangEngine"),
        ("main([])", "areal.utils.seeding.set_random_seed"),
    ],
)
def test_a_file_that_trains_as_well_is_imported_and_what_trains_is_refused_when_called(
    shim: None, call: str, name: str
) -> None:
    found = imported(TRAINING_SCRIPT)
    assert issubclass(found["ModelRequest"], ModelRequest)
    assert issubclass(found["TheirConfig"], imported("from areal.api.cli_args import GRPOConfig")["GRPOConfig"])
    with pytest.raises(ImportError, match=rf"^{name} is for training, and AReaL is not installed.*\n.*--config"):
        eval(call, found)


@pytest.mark.parametrize("module", ["areal.experimental.openai", "areal.workflow.openai.math_agent"])
def test_what_needs_a_package_that_is_not_there_names_it(
    shim: None, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    for ours in ("openai", "math_agent"):
        monkeypatch.delitem(sys.modules, f"pytest_areal_eval.areal_shim.{ours}", raising=False)
    name = next(iter(SURFACE[module]))
    with pytest.raises(
        ModuleNotFoundError, match=rf"^{module} needs openai.*: pip install 'pytest-areal-eval\[agents\]'"
    ):
        imported(f"from {module} import {name}")


def test_a_module_has_no_attributes_but_its_names(shim: None) -> None:
    module = importlib.import_module("areal.api")
    assert not hasattr(module, "nothing")
    assert "ModelRequest" in dir(module)


def test_it_goes_as_it_came(shim: None) -> None:
    importlib.import_module("areal.api.cli_args")
    assert not areal_shim.install()
    areal_shim.uninstall()
    assert not areal_shim.is_installed()
    assert not [name for name in sys.modules if name.partition(".")[0] == "areal"]


def test_a_session_has_it_for_as_long_as_its_configuration_lives() -> None:
    cleanups: list[Any] = []
    for _ in range(2):  # a session inside of one that has it leaves it on
        plugin._install_areal_shim(SimpleNamespace(add_cleanup=cleanups.append))  # type: ignore[arg-type]
    assert areal_shim.is_installed()
    (cleanup,) = cleanups
    cleanup()
    assert not areal_shim.is_installed()


# AReaL itself

REAL = {
    "__init__.py": "",
    "api/__init__.py": """
from dataclasses import dataclass, field, replace

@dataclass
class GenerationHyperparameters:
    n_samples: int = 1
    max_new_tokens: int = 9
    greedy: bool = True
    temperature: float = 1.0

@dataclass
class ModelRequest:
    rid: str = "r"
    input_ids: list = field(default_factory=list)
    gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    metadata: dict = field(default_factory=dict)
    tokenizer: object = None

class RolloutWorkflow:
    async def arun_episode(self, engine, data): ...
""",
    "workflow.py": """
from areal.api import ModelRequest, RolloutWorkflow

class Theirs(RolloutWorkflow):
    def __init__(self, bonus=0.0):
        self.bonus = bonus

    async def arun_episode(self, engine, data):
        response = await engine.agenerate(ModelRequest(input_ids=[1, 2, 3]))
        return {"rewards": [float(response.output_len > 0) + self.bonus], "input_ids": [[1, 2, 3]]}
""",
}


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package of that name."""
    for name, source in REAL.items():
        file = tmp_path / "areal" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "areal"]:
        del sys.modules[name]


def test_an_installed_areal_is_never_shadowed(real: None, shim: None) -> None:
    assert imported("from areal.api import ModelRequest")["ModelRequest"] is not ModelRequest
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'areal\.utils'"):
        imported("import areal.utils.stats_tracker")


@pytest.mark.parametrize("kwargs", [{}, {"bonus": 0.5}])
def test_an_installed_areals_workflow_and_its_requests_are_taken_as_they_are(
    real: None, kwargs: dict[str, float]
) -> None:
    asked: list[ModelRequest] = []

    async def answer(request: ModelRequest) -> ModelResponse:
        asked.append(request)
        return ModelResponse(output_tokens=[4, 5], text="x")

    with RolloutController(LocalEngine(answer)) as controller:
        controller.initialize()
        (rollout,) = controller.rollout_batch([{}], "areal.workflow.Theirs", kwargs)
    episode = rollout.episodes[0]
    assert (episode.status, episode.reward, episode.error) == (EpisodeStatus.SCORED, 1.0 + kwargs.get("bonus", 0.0), "")
    (request,) = asked
    assert (request.input_ids, request.gconfig.max_new_tokens) == ([1, 2, 3], 9)
    assert request.rid.startswith("r-")
    assert request.gconfig.greedy
    assert request.metadata == {"logprobs": True}, "theirs always come with log-probabilities"


# What is imported


class Tokenizer:
    pad_token_id, eos_token_id = 7, 2


@pytest.mark.parametrize(
    ("before", "after"), [([], [7, 2]), ([5], [5, 7, 2]), ([2], [2, 7]), ([7, 2], [7, 2]), ([2, 7], [2, 7])]
)
def test_stop_and_pad_ids_are_appended_where_they_are_missing(before: list[int], after: list[int]) -> None:
    settings = GenerationHyperparameters(stop_token_ids=before)
    assert settings.new_with_stop_and_pad_token_ids(Tokenizer()).stop_token_ids == after
    assert settings.stop_token_ids == before


def test_newer_areals_stop_ids_are_those_of_a_tokenizer(shim: None) -> None:
    stops = imported("from areal.utils.hf_utils import tokenizer_stop_token_ids as stops")["stops"]
    settings = GenerationHyperparameters(stop_token_ids=[5, 2])
    assert settings.new_with_stop_token_ids(stops(Tokenizer())).stop_token_ids == [5, 2, 7]
    assert stops(SimpleNamespace(eos_token_id=2, pad_token_id=None)) == [2]


def test_new_copies_and_refuses_what_there_is_not() -> None:
    settings = GenerationHyperparameters(stop=["a"], n_samples=4)
    copy = settings.new(n_samples=1)
    assert (copy.n_samples, copy.stop, copy.stop is settings.stop) == (1, ["a"], False)
    with pytest.raises(TypeError, match="min_tokens"):
        settings.new(min_tokens=3)


@pytest.mark.parametrize(
    ("api_format", "length"),
    [
        ("completions", "max_completion_tokens"),
        ("responses", "max_output_tokens"),
        ("openai-agents", "max_tokens"),
    ],
)
def test_settings_as_an_openai_clients_arguments(
    api_format: str, length: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = GenerationHyperparameters(n_samples=4, max_new_tokens=10, temperature=0.5, stop=["x"], top_k=5)
    expected = {"n": 4, length: 10, "top_p": 1.0, "temperature": 0.5, "stop": ["x"], "frequency_penalty": 0.0}
    assert settings.to_openai_args_dict(api_format=api_format) == expected
    method = {"openai-agents": "agents_model_settings"}.get(api_format, f"{api_format}_args")
    assert getattr(settings, f"to_openai_{method}_dict")(exclude_args=["top_k"]) == expected
    assert caplog.messages == ["Unsupported arg for openai format: `top_k` with value 5"]


def test_settings_that_say_nothing_unusual_warn_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert "n" not in GenerationHyperparameters().to_openai_args_dict(exclude_args=["n_samples", "top_k"])
    assert not caplog.messages


def test_greedy_and_the_seed_reach_openai() -> None:
    found = GenerationHyperparameters(greedy=True, seed=3).to_openai_args_dict()
    assert (found["temperature"], found["seed"]) == (0.0, 3)


def test_an_unknown_openai_format_is_refused() -> None:
    with pytest.raises(ValueError, match="Unsupported API format: chat"):
        GenerationHyperparameters().to_openai_args_dict(api_format="chat")


def test_a_requests_and_a_responses_properties() -> None:
    request = ModelRequest(input_ids=[1], gconfig=GenerationHyperparameters(stop=["a"]), tokenizer=Tokenizer())
    copy = request.copy()
    copy.input_ids.append(2)
    assert (request.input_ids, copy.rid, copy.tokenizer) == ([1], request.rid, request.tokenizer)
    response = ModelResponse(input_tokens=[1, 2], output_tokens=[3, 7, 2], tokenizer=Tokenizer())
    assert (response.input_len, response.output_len, response.end_with_stop) == (2, 3, True)
    assert response.output_tokens_without_stop == [3]
    assert response.latency == response.ttft == float("inf")
    cut = ModelResponse(output_tokens=[3, 4], tokenizer=Tokenizer())
    assert (cut.end_with_stop, cut.output_tokens_without_stop) == (False, [3, 4]), "AReaL's raises here"


@pytest.mark.parametrize(
    "ids", [(1, 2), {"input_ids": [1, 2], "attention_mask": [1, 1]}, {"input_ids": [[1, 2]]}, np.array([1, 2])]
)
def test_a_requests_ids_come_in_many_forms(ids: Any) -> None:
    async def episode(engine: Any, item: dict[str, Any]) -> float:
        response = await engine.agenerate(ModelRequest(input_ids=ids))
        return float(response.text == "42")

    engine = LocalEngine()
    with RolloutController(engine) as controller:
        controller.initialize()
        assert controller.rollout_batch([{}], episode)[0].episodes[0].error == ""
    assert engine.requests[0].input_ids == [1, 2]


@pytest.mark.parametrize(
    ("metadata", "asked"), [({}, True), ({"qid": 3}, True), ({"logprobs": False}, False)], ids=["", "own", "off"]
)
def test_areals_requests_ask_for_log_probabilities(shim: None, metadata: dict[str, Any], asked: bool) -> None:
    request = imported("from areal.api.io_struct import ModelRequest as R")["R"](input_ids=[1], metadata=metadata)
    assert ModelRequest.of(request).copy().metadata == {**metadata, "logprobs": asked}
    assert "logprobs" not in ModelRequest(metadata={}).metadata


def test_a_reward_of_areals_can_be_computed_with_and_tells_what_it_compared(shim: None) -> None:
    grade = imported("from areal.reward.gsm8k import gsm8k_reward_fn")["gsm8k_reward_fn"]
    reward = grade("q", r"\boxed{72}", [], [], answer="48/2 = 24\n#### 72", messages=[])
    assert 0.9 * reward + 0.1 == 1.0
    assert (type(0.9 * reward), reward.extracted, reward.gold) == (float, "72", "72")
    verify = imported("from areal.reward import get_math_verify_worker")["get_math_verify_worker"]().verify
    assert (verify("The answer is 0.5", "1/2"), verify("4", "3/12")) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("completion", "gold", "reward"),
    [(r"\boxed{5\sqrt{3}}", r"2 \sqrt { 3 }", 0.0), (r"\boxed{\frac{1}{2}}", "0.5", 1.0), ("[45 degrees]", "45", 1.0)],
)
@pytest.mark.parametrize("name", ["geometry3k", "clevr_count_70k"])
def test_answers_about_pictures_are_compared_whole(
    shim: None, name: str, completion: str, gold: str, reward: float
) -> None:
    grade = imported(f"from areal.reward.{name} import {name}_reward_fn as grade")["grade"]
    assert grade("q", completion, [], [], answer=gold, images=[]) == reward


DERIVED = """
from areal.api import AsyncRewardWrapper
from areal.workflow.rlvr import RLVRWorkflow, default_get_input_ids_fn

class Derived(RLVRWorkflow):
    async def arun_episode(self, engine, data):
        found = await super().arun_episode(engine, data)
        assert found["input_ids"].shape == found["logprobs"].shape == found["loss_mask"].shape == (1, 5)
        assert found["loss_mask"].tolist() == [[0, 0, 0, 1, 1]]
        return found

class Hooked(RLVRWorkflow):
    def __init__(self, reward_fn, gconfig, tokenizer):
        super().__init__(reward_fn, gconfig, tokenizer, get_input_ids_fn=lambda data, tokenizer, thinking: [1, 2, 3])

    async def _compute_rewards(self, resp, prompt_str, task_data):
        assert self.get_input_ids_fn(task_data["messages"], self.tokenizer, self.enable_thinking) == [1, 2, 3]
        return 2 * await self.async_reward_fn(prompt_str, "", [], resp.output_tokens, **task_data)

class FromScratch(RLVRWorkflow):
    async def arun_episode(self, engine, data):
        assert self.get_input_ids_fn is default_get_input_ids_fn
        ids = self.get_input_ids_fn(self.data_extract_prompt_fn(data), self.tokenizer, self.enable_thinking)
        return {"rewards": [await AsyncRewardWrapper(self.reward_fn)("", "", ids, [], **data) - 3]}
"""


class Templated(Tokenizer):
    def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
        assert options["enable_thinking"] is False
        return [1, 2, 3]

    def decode(self, ids: Any, **options: Any) -> str:
        return " ".join(map(str, ids))


def minus_one(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, **columns: Any) -> float:
    """Below what an evaluation's own rewards may be."""
    return -1.0


@pytest.mark.parametrize(
    ("name", "reward"), [("RLVRWorkflow", -1), ("Derived", -1), ("Hooked", -2), ("FromScratch", -4)]
)
def test_what_derives_from_areals_workflow_finds_its_attributes_hooks_and_tensors(
    shim: None, name: str, reward: float
) -> None:
    async def answer(request: ModelRequest) -> ModelResponse:
        wanted = [-0.5, -0.5] if request.metadata.get("logprobs") else []
        return ModelResponse(input_tokens=request.input_ids, output_tokens=[4, 5], output_logprobs=wanted)

    workflow = imported(DERIVED)[name](minus_one, GenerationHyperparameters(), Templated())
    with RolloutController(LocalEngine(answer)) as controller:
        controller.initialize()
        (rollout,) = controller.rollout_batch([{"messages": [{"role": "user", "content": "q"}]}], workflow)
    assert (rollout.episodes[0].error, rollout.reward) == ("", reward)


def test_a_dotted_name_of_areals_tells_of_the_shim() -> None:
    with pytest.raises(ImportError, match=r"No module named 'areal'; --areal-shim answers for it"):
        import_from_string("areal.workflow.rlvr.RLVRWorkflow")


def test_gsm8k_comes_as_areal_has_it_and_anything_else_as_it_is(
    shim: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = imported("from areal.dataset import get_custom_dataset")["get_custom_dataset"]
    (tmp_path / "my-gsm8k.jsonl").write_text('{"question": "q", "answer": "a"}')
    assert read(split=None, path=str(tmp_path / "my-gsm8k.jsonl"), type="rl") == [{"question": "q", "answer": "a"}]
    asked: list[Any] = []

    def load(path: str, **more: Any) -> Any:
        asked.append((path, more["config"], more["split"]))
        return SimpleNamespace(records=[{"question": "q", "answer": "a"}, {"question": "q" * 99, "answer": "b"}])

    monkeypatch.setattr("pytest_areal_eval.datasets.load_dataset", load, raising=False)
    config = SimpleNamespace(path="openai/gsm8k", type="rl", max_length=60)
    tokenizer = SimpleNamespace(encode=list)
    (row,) = read(split="test", dataset_config=config, tokenizer=tokenizer)
    content = "q\nPlease put your final answer within \\boxed{}."
    assert row == {"messages": [{"role": "user", "content": content}], "answer": "a"}
    assert asked == [("openai/gsm8k", "main", "test")]
    with pytest.raises(ValueError, match="type='sft' is for training"):
        read(path="x", type="sft")


def test_a_grading_process_knows_areals_names_too(shim: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_rewards.py").write_text(
        "from areal.reward.gsm8k import gsm8k_reward_fn\n"
        "def half(*args, **columns):\n    return 0.5 * gsm8k_reward_fn(*args, **columns)\n"
        "def whole(*args, **columns):\n    return gsm8k_reward_fn(*args, **columns)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    half = importlib.import_module("their_rewards").half

    async def episode(engine: Any, item: dict[str, Any]) -> Any:
        wrapper = pytest_areal_eval.AsyncRewardWrapper
        return {
            "reward": await wrapper("their_rewards.whole").score("", r"\boxed{5}", [], [], answer="#### 5"),
            "half": await wrapper(half)("", r"\boxed{5}", [], [], answer="#### 5"),
        }

    with RolloutController(LocalEngine()) as controller:
        controller.initialize()
        (rollout,) = controller.rollout_batch([{}], episode)
    found = rollout.episodes[0]
    assert (found.reward, found.extracted, found.metrics, found.error) == (1.0, "5", {"half": 0.5}, "")


def test_tensors_are_concatenated_and_padded(shim: None) -> None:
    import torch

    concat = imported("from areal.utils.data import concat_padded_tensors")["concat_padded_tensors"]
    rows = [
        {"input_ids": torch.ones(1, n), "attention_mask": torch.ones(1, n, dtype=torch.bool), "rewards": torch.ones(1)}
        | {"source": ["s"]}
        for n in (2, 3)
    ]
    found = concat(rows)
    assert found["input_ids"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert found["attention_mask"].tolist() == [[True, True, False], [True, True, True]]
    assert (found["rewards"].shape, found["source"]) == ((2,), ["s", "s"])
    assert concat([]) == {}
    with pytest.raises(ValueError, match=r"dict\[1\] has different keys"):
        concat([{"a": torch.ones(1)}, {"b": torch.ones(1)}])


def test_pictures_are_encoded_as_a_request_has_them(shim: None) -> None:
    encode = imported("from areal.utils.image import image2base64")["image2base64"]
    picture = SimpleNamespace(save=lambda file, format: file.write(format.encode()))  # noqa: A006 - PIL's name
    assert encode([picture, b"jpeg"]) == ["UE5H", "anBlZw=="]
    assert encode(picture) == ["UE5H"]


def test_the_tracers_calls_change_nothing_and_loggers_are_pythons(shim: None) -> None:
    import asyncio

    tracer = imported("from areal.utils.perf_tracer import *\nfrom areal.utils import perf_tracer")["perf_tracer"]

    @tracer.trace_session("reward")
    @tracer.trace_perf("grade", category=tracer.Category.COMPUTE)
    async def grade() -> float:
        async with tracer.atrace_session_phase("generate", start_payload={}), tracer.atrace_scope("s"):
            with tracer.trace_scope("t", args={}), tracer.trace_session_phase("reward"):
                tracer.instant("now")
        return 1.0

    assert asyncio.run(tracer.session_context()(grade)()) == 1.0
    assert imported("from areal.utils import logging")["logging"].getLogger("RLVR") is logging.getLogger("RLVR")


def test_the_module_of_functions_records_for_the_running_episode(shim: None) -> None:
    names = imported("from areal.utils import stats_tracker\nfrom areal import workflow_context")
    stats, context = names["stats_tracker"], names["workflow_context"]

    @stats.scope_func_wrapper("step")
    async def step() -> None:
        stats.scalar(a=1.0)

    async def episode(engine: Any, item: dict[str, Any]) -> float:
        with stats.scope("outer"), stats.record_timing("all"):
            stats.scalar(b=2.0)
            stats.denominator(n=[True, False])
            stats.stat("n", c=[3.0, 9.0], reduce_type=stats.ReduceType.MAX)
            with stats.disable_scope():
                stats.scalar(d=4.0)
        await step()
        stats.get(context.stat_scope()).scalar(e=float(context.get().is_eval), task=context.get().task_id)
        return 1.0

    with RolloutController(LocalEngine()) as controller:
        controller.initialize()
        controller.rollout_batch([{}, {}], episode)
        found = controller.export_stats()
    assert {key: found[key] for key in ("outer/b", "outer/c", "outer/n", "d", "step/a", "eval-rollout/e")} == {
        "outer/b": 2.0,
        "outer/c": 3.0,
        "outer/n": 2.0,
        "d": 4.0,
        "step/a": 1.0,
        "eval-rollout/e": 1.0,
    }
    assert (found["timeperf/all__count"], found["eval-rollout/task"]) == (2, 0.5)


def test_the_contexts_http_clients_are_shared_and_closed(shim: None) -> None:
    context = imported("from areal import workflow_context")["workflow_context"]
    seen: list[Any] = []

    async def episode(engine: Any, item: dict[str, Any]) -> float:
        seen.append((await context.get_aiohttp_session(), await context.get_httpx_client()))
        return 1.0

    pytest.importorskip("httpx_aiohttp")
    with RolloutController(LocalEngine()) as controller:
        controller.initialize()
        controller.rollout_batch([{}, {}], episode)
    (session, client), again = seen
    assert (session, client) == again
    assert session.closed
    assert client.is_closed
