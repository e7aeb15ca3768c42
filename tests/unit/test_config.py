"""Configurations: AReaL's files as they are, with where each value came from; one clear message for each mistake."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_areal_eval.cli import main
from pytest_areal_eval.config import Config, load_config
from pytest_areal_eval.config.options import option_values, remarks
from pytest_areal_eval.config.show import config_rows
from pytest_areal_eval.errors import ConfigError

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
Load = Callable[..., Config]


def load(name: str, *overrides: str) -> Config:
    """One of the example configurations."""
    return load_config(CONFIGS / name, overrides, name=name)


@pytest.fixture
def written(tmp_path: Path) -> Load:
    """Write a configuration and load it."""

    def make(text: str, *overrides: str) -> Config:
        file = tmp_path / "c.yaml"
        file.write_text(text, encoding="utf-8")
        return load_config(file, overrides, name="c.yaml")

    return make


def options(config: Config, *decided: str) -> dict[str, Any]:
    """The options that a configuration sets."""
    return {name: found.value for name, found in option_values(config, decided).items()}


@pytest.mark.parametrize("file", sorted(CONFIGS.iterdir()), ids=lambda file: file.name)
def test_every_example_is_read_as_it_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECKPOINT", raising=False)
    config = load_config(file)
    assert options(config)["model"]
    assert all(origin for _, _, origin in config_rows(config))


def test_no_key_of_areals_classes_is_unknown() -> None:
    config = load("every_key.yaml")
    assert (config.unknown, remarks(config)) == ((), [])
    found = options(config)
    assert (found["seed"], found["request-timeout"], found["episode-timeout"]) == (17, 1800, 1800)
    assert (found["request-attempts"], found["max-concurrency"], found["trial"]) == (2, 32, "every-key/trial0")
    assert found["agents"] == {"mode": "environment", "max_tokens": 4096, "processes": 6}
    assert found["evaluation"] == {"dataset": "org/data", "split": "validation", "workflow": "my_project.agents.Agent"}
    assert (found["top-k"], found["stop-token-ids"], found["frequency-penalty"]) == (50, [2], 0.1)
    dropped = {"model_path", "random_seed", "skip_tokenizer_init", "enable_multithread_load", "worker_extension_cls"}
    assert not dropped & (found["sglang"].keys() | found["vllm"].keys())


def test_references_lead_to_values_lists_and_sections() -> None:
    config = load("references.yaml")
    found = options(config)
    assert (config.trial_name, found["seed"], found["model"]) == ("refs-0", 5, ["/ckpt/step_10"])
    assert (found["scheduler"], found["max-concurrency"], found["n-samples"]) == ("slurm", 16, 2)
    assert (found["temperature"], found["top-p"], found["stop-token-ids"]) == (0.7, 0.95, [1, 2, 3])
    assert found["stop"] == ["a: b", "it's", "tab\t"]
    assert (found["server-cpus"], found["server-env"]) == (2, ["LEVEL=5"])
    assert str(config.origins["rollout.scheduling_spec.0.cpu"]).endswith(
        "${actor.scheduling_spec.0.cpu}, ${launching.specs.0.cpu}"
    )


def test_keys_of_users_own_classes_are_named_once_and_what_cannot_be_followed_too() -> None:
    config = load("subclass.yaml")
    assert options(config)["evaluation"] == {
        "dataset": "org/tools",
        "workflow": "my_project.workflows.ToolWorkflow",
        "reward_fn": "my_project.rewards.tool_reward",
    }
    unknown, *said = remarks(config)
    assert unknown.startswith("unknown keys, ignored: name, resources, ")
    assert not any(key in unknown for key in ("workflow", "launcher", "behave"))
    assert [remark.partition(": ")[0] for remark in said] == [
        "rollout.agent.mode",
        "rollout.agent.tool_call_parser",
        "rollout.agent.reasoning_parser",
        "rollout.agent.chat_template_type",
        "valid_dataset.type",
        "valid_dataset.max_length",
        "valid_dataset.dataset_kwargs",
    ]


def test_a_tokenizer_elsewhere_is_that_of_the_configurations_checkpoint(written: Load) -> None:
    text = "actor: {path: /ckpt}\ntokenizer_path: /words\n"
    assert options(written(text))["tokenizer"] == {"/ckpt": "/words"}
    assert "tokenizer" not in options(written(text, "tokenizer_path=/ckpt"))


def test_a_dataset_of_the_configuration_is_found_from_the_current_folder(
    written: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}")
    config = written("valid_dataset: {path: rows.jsonl, split: test}\n")
    assert options(config)["evaluation"] == {"dataset": str(tmp_path / "rows.jsonl")}


def test_a_training_configuration_is_read_as_it_is() -> None:
    config = load("gsm8k.yaml")
    assert (config.experiment_name, config.trial_name, config.seed) == ("gsm8k-small", "trial0", 1)
    assert (config.actor.path, config.tokenizer_path, config.rollout.tokenizer_path) == ("org/small-model",) * 3
    assert config.rollout.fileroot == config.cluster.fileroot == "experiments"
    assert [spec.env_vars for spec in config.rollout.scheduling_spec] == [{}]
    assert config.vllm["model"] == "org/small-model"
    assert (config.valid_dataset.path, config.valid_dataset.split) == ("openai/gsm8k", "test")
    assert config.unknown == ()
    assert remarks(config) == []


def test_a_configuration_sets_the_options() -> None:
    found = options(load("gsm8k.yaml"))
    assert found.pop("dump").endswith("/gsm8k-small/trial0/eval-rollout/0")
    assert found == {
        "seed": 1,
        "trial": "gsm8k-small/trial0",
        "evaluation": {"dataset": "openai/gsm8k"},
        "backend": "sglang:d4p1t1",
        "model": ["org/small-model"],
        "max-concurrency": 256,
        "n-samples": 4,
        "min-new-tokens": 0,
        "max-new-tokens": 1024,
        "temperature": 1.0,
        "greedy": False,
        "server-mem": 32,
        "sglang": {"dtype": "bfloat16", "context_length": 32768, "mem_fraction_static": 0.8},
        "vllm": {"dtype": "bfloat16", "max_model_len": 32768, "gpu_memory_utilization": 0.8},
    }


def test_an_agents_configuration_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECKPOINT", raising=False)
    config = load("agent.yaml")
    assert config.trial_name == "3"
    assert (config.rollout.agent.mode, config.rollout.agent.turn_discount) == ("subproc", 0.9)
    assert config.rollout.scheduling_spec[0].env_vars == {"LEVEL": "1"}
    found = options(config)
    assert found["slurm-exclude"] == "node[1-2]"
    assert found["slurm-setup"] == ["module load cuda"]
    assert found["slurm-sbatch-arg"] == ["nodelist=node9", "reservation=eval"]
    assert (found["scheduler"], found["backend"], found["start-timeout"]) == ("ray", "vllm[rollout]:d2t4", 900.0)
    assert (found["seed"], found["n-samples"], found["temperature"], found["max-tokens"]) == (8, 1, 0.6, 4096)
    assert found["stop"] == ["</answer>", "\n\n"]
    assert found["vllm"] == {"max_num_seqs": 64, "no_enable_prefix_caching": True, "max_model_len": 32768}
    assert found["model"] == ["org/agent-model"]
    assert "max-concurrency" not in found


def test_an_old_configuration_is_read_as_it_is() -> None:
    config = load("legacy.yml")
    assert (config.experiment_name, config.actor.path) == ("", "org/old-model")
    found = options(config)
    assert (found["backend"], found["greedy"], found["top-p"]) == ("sglang:d4p1t2", True, 0.95)
    assert "model_path" in config.unknown
    assert "gconfig.temperatur (did you mean temperature?)" in config.unknown
    assert not any("optimizer" in key or "behave" in key for key in config.unknown)


def test_a_configuration_without_an_inference_side_names_the_checkpoint() -> None:
    assert options(load("sft.yaml")) == {"model": ["org/base-model"], "trial": "gsm8k-sft/trial0"}


def test_unknown_keys_are_told_together() -> None:
    said = remarks(load("agent.yaml"), scheduler="slurm")
    assert said == ["unknown keys, ignored: econfig, max_turns, rollout.openai"]


def test_what_the_scheduler_cannot_follow_is_told() -> None:
    said = remarks(load("agent.yaml", "actor.scheduling_spec.0.gpu=4"), scheduler="ray")[1:]
    assert said == [
        "rollout.scheduling_spec.gpu: a replica's GPUs follow from its allocation",
        "rollout.scheduling_spec.nodelist, exclude, reservation, additional_bash_cmds: only for Slurm",
    ]


def test_the_clusters_section_sets_slurms_options() -> None:
    found = options(load("agent.yaml", "+cluster.slurm.partition=gpu", "+cluster.slurm.exclude=node7"))
    assert (found["slurm-partition"], found["slurm-exclude"]) == ("gpu", "node7,node[1-2]")
    assert found["server-env"] == ["LEVEL=1"]


def test_eval_gconfig_inherits_what_it_does_not_say() -> None:
    config = load("gsm8k.yaml", "+eval_gconfig.temperature=0.0")
    assert (config.eval_gconfig.temperature, config.gconfig.temperature) == (0.0, 1.0)
    assert (config.eval_gconfig.n_samples, config.eval_gconfig.max_new_tokens) == (4, 1024)
    assert str(config.origins["eval_gconfig.n_samples"]) == "gsm8k.yaml:35, ${gconfig}"
    assert load("gsm8k.yaml").eval_gconfig == load("gsm8k.yaml").gconfig


def test_sampling_without_a_temperature_has_areals(written: Load) -> None:
    found = option_values(written("gconfig: {n_samples: 1}\n"))["temperature"]
    assert (found.value, str(found.origin)) == (1.0, "AReaL's default")
    assert "temperature" not in options(written("seed: 1\n"))
    assert "temperature" not in options(written("gconfig: {greedy: true}\n"))


def test_each_value_knows_where_it_came_from() -> None:
    config = load("gsm8k.yaml", "actor.path=/ckpt/step=100,x y", "actor.scheduling_spec.0.gpu=2")
    assert str(config.origins["seed"]) == "gsm8k.yaml:4"
    assert str(config.origins["actor.path"]) == "actor.path=/ckpt/step=100,x y"
    assert str(config.origins["tokenizer_path"]) == "gsm8k.yaml:7, ${actor.path}"
    assert config.tokenizer_path == config.sglang["model_path"] == "/ckpt/step=100,x y"
    assert {key for key in config.origins if config.origins[key].typed} == {
        "actor.path",
        "tokenizer_path",
        "rollout.tokenizer_path",
        "sglang.model_path",
        "vllm.model",
        "rollout.scheduling_spec.0.gpu",
    }
    rows = {key: (value, origin) for key, value, origin in config_rows(config)}
    assert rows["gconfig.top_p"] == ("1.0", "default")
    assert rows["rollout.backend"] == ('"sglang:d4p1t1"', "gsm8k.yaml:21")


@pytest.mark.parametrize("override", ["gconfig.n_samples=8", "gconfig={n_samples: 8}", "++gconfig.n_samples=8"])
def test_an_override_is_an_origin_that_was_typed(override: str) -> None:
    config = load("gsm8k.yaml", override)
    assert config.eval_gconfig.n_samples == 8
    assert config.origins["eval_gconfig.n_samples"].typed
    assert not config.origins["eval_gconfig.max_new_tokens"].typed


def test_what_training_needs_changes_no_evaluation() -> None:
    plain = options(load("gsm8k.yaml"))
    assert options(load("gsm8k.yaml", "actor.reward_scaling=99", "rollout.max_head_offpolicyness=0")) == plain
    assert options(load("gsm8k.yaml", "~ref", "~train_dataset", "~saver", "~rollout.consumer_batch_size")) == plain


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=abc", "seed=abc: seed: 'abc' is not a whole number"),
        ("seed=1.5", "seed=1.5: seed: 1.5 is not a whole number"),
        ("seed=1,2", "seed=1,2: seed: '1,2' is not a whole number"),
        ("seed=null", "seed=null: seed: null is no value for it"),
        ("trial_name=null", "null is no value for it"),
        ("gconfig.temperature=hot", "gconfig.temperature: 'hot' is not a number"),
        ("rollout.dump_to_file=tru", "rollout.dump_to_file: 'tru' is not true or false"),
        ("actor.path={a: 1}", "is not text"),
        ("gconfig=3", "gconfig=3: gconfig: 3 is not a mapping"),
        ("+gconfig.stop=END", "gconfig.stop: 'END' is not a list"),
        ("sglang=[1]", "sglang: [1] is not a mapping"),
        ("rollout.scheduling_spec={cpu: 1}", "rollout.scheduling_spec: {'cpu': 1} is not a list"),
        ("seed=${b.}", "--set seed=${b.}: seed: ${b.}: no viable alternative"),
        (
            "seed=${tial_name}",
            "seed: ${tial_name} refers to tial_name, which does not exist\nDid you mean ${trial_name}?",
        ),
        ("+foo=1", "+foo=1: there is no foo"),
        ("+gconfig.top_pp=1", "there is no gconfig.top_pp\nDid you mean gconfig.top_p?"),
    ],
)
def test_a_wrong_override_is_named(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(CONFIGS / "gsm8k.yaml", [override], label="--set")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("override", "value"),
    [("true", True), ("yes", True), ("ON", True), ("1", True), ("no", False), ("off", False), ("0", False)],
)
def test_a_truth_has_many_spellings(override: str, value: bool) -> None:
    assert load("gsm8k.yaml", f"rollout.dump_to_file={override}").rollout.dump_to_file is value


def test_a_circle_of_references_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"refers to itself: seed -> gconfig.n_samples -> seed"):
        load("gsm8k.yaml", "seed=${gconfig.n_samples}", "gconfig.n_samples=${seed}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [*x]\n", "c.yaml, line 1, column 4: YAML recursive aliases are not supported"),
        ("a: 1\n---\nb: 2\n", "c.yaml, line 2, column 1: but found another document"),
        ("", "c.yaml is empty"),
        ("# only a comment\n", "c.yaml is empty"),
        ("- 1\n- 2\n", "c.yaml holds no keys"),
        ("just text", "c.yaml holds no keys"),
        ("a: [1, 2\nb: 3\n", "c.yaml, line 2, column 2: "),
        ("a:\n\tb: 1\n", "c.yaml, line 2, column 1: "),
        ("seed: 1\nseed: 2\n", "c.yaml, line 2, column 1: found duplicate key seed"),
        ("a: !!python/object:os.x {}\n", "c.yaml, line 1, column 4: could not determine a constructor"),
        ("a: \x00", "c.yaml: "),
        ("seed: abc\n", "c.yaml:1: seed: 'abc' is not a whole number"),
        ("a: 1\nseed: ${nope}\n", "c.yaml:2: seed: ${nope} refers to nope, which does not exist"),
        ("seed: ${seed}\n", "c.yaml:1: seed: ${seed} refers to itself: seed -> seed"),
        ("seed: ${b.}\n", "c.yaml: seed: "),
        ("rollout:\n  agent: 5\n", "c.yaml:2: rollout.agent: 5 is not a mapping"),
        ("rollout:\n  scheduling_spec:\n    - nonsense\n", "c.yaml:3: rollout.scheduling_spec.0: 'nonsense' is not a"),
    ],
)
def test_a_wrong_file_shows_the_place(written: Load, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        written(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rollout:\n  backend: zzz\n", "c.yaml:2: rollout.backend: zzz: no such engine 'zzz' at column 1"),
        ("rollout:\n  backend: fsdp:d4\n", "c.yaml:2: rollout.backend: fsdp:d4: fsdp trains and serves nothing"),
        ("allocation_mode: sglang:d4+d4\n", "c.yaml:1: allocation_mode: sglang:d4+d4: the backend must be explicitly"),
        ("allocation_mode: fsdp:d4\n", "c.yaml:1: allocation_mode: no 'gen' allocation in fsdp:d4"),
        ("rollout:\n  agent: {mode: threads}\n", "c.yaml:2: rollout.agent.mode: 'threads' is not inline or subproc"),
        ("rollout:\n  agent: {engine_max_tokens: 0}\n", "c.yaml:2: rollout.agent.engine_max_tokens: 0 is below 1"),
        ("rollout:\n  request_timeout: 0\n", "c.yaml:2: rollout.request_timeout: 0 is not above 0 seconds"),
        ("rollout:\n  request_retries: -1\n", "c.yaml:2: rollout.request_retries: -1 is below 0"),
        ("gconfig:\n  use_beam_search: true\n", "c.yaml:2: use_beam_search: an evaluation samples, or is greedy"),
    ],
)
def test_what_an_evaluation_cannot_do_is_refused(written: Load, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        option_values(written(text))
    assert said in str(caught.value)


OF_THE_ENVIRONMENT = """
tokenizer_path: ${actor.path}
actor:
  path: ${oc.env:NO_SUCH_CKPT}
  scheduling_spec:
    - cmd: ${oc.env:NO_SUCH_PYTHON} -m areal.infra.rpc.rpc_server
      image: ${oc.env:NO_SUCH_IMAGE,areal.sif}
rollout:
  scheduling_spec: ${actor.scheduling_spec}
  agent: {admin_api_key: "${oc.env:NO_SUCH_KEY}"}
"""


def test_a_variable_that_is_not_set_matters_only_where_it_is_read(written: Load, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^c.yaml:4: actor.path: \$\{oc.env:NO_SUCH_CKPT\}: the environment.*\n.*actor.path=VALUE"
    ):
        written(OF_THE_ENVIRONMENT)
    overridden = written(OF_THE_ENVIRONMENT, "actor.path=/ckpt")
    assert (overridden.tokenizer_path, overridden.rollout.scheduling_spec[0].image) == ("/ckpt", "areal.sif")
    with pytest.raises(ConfigError, match=r"^c.yaml:7: actor.scheduling_spec.0.image: .*NO_SUCH_IMAGE is not set"):
        written(OF_THE_ENVIRONMENT.replace(",areal.sif", ""), "actor.path=/ckpt")


def test_a_model_of_ones_own_stands_in_for_a_reference_that_leads_nowhere(written: Load, tmp_path: Path) -> None:
    written(OF_THE_ENVIRONMENT, "actor.path=/ckpt")
    config = load_config(tmp_path / "c.yaml", ["actor.path=${nowhere}", "tokenizer_path=/words"], model="/mine")
    assert config.actor.path == "/mine"
    assert "tokenizer" not in options(config, "model"), "it is another checkpoint's"


def test_what_somebody_else_decided_need_not_be_right(written: Load) -> None:
    assert options(written("rollout: {backend: zzz}\nactor: {path: x}\n"), "backend") == {"model": ["x"]}


def test_of_several_that_generate_rollout_is_meant(written: Load) -> None:
    mode = "sglang[rollout]:d2+sglang[judge]:d4+fsdp[actor]:d2"
    assert options(written(f"allocation_mode: {mode}\n"))["backend"] == "sglang:d2p1t1"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.yaml: no such file"):
        load_config(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match="is not UTF-8 at byte 3"):
        load_config(tmp_path / "latin.yaml")


def test_loading_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(CONFIGS / "gsm8k.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    load_config("gsm8k.yaml", ["seed=2"])
    assert [path.name for path in tmp_path.iterdir()] == ["gsm8k.yaml"]


def test_the_command_prints_values_options_and_origins(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(CONFIGS / "gsm8k.yaml")
    assert main(["config", file, "seed=7", "~ref", "--given"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["seed", "7", "seed=7"] in lines
    assert ["n-samples", "4", f"{file}:35,", "${gconfig}"] in lines
    assert not any(line[-1:] == ["default"] for line in lines)


def test_the_commands_options_may_stand_between_file_and_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(CONFIGS / "gsm8k.yaml"), "--given", "seed=7", "gconfig.n_samples=3"]) == 0
    assert re.search(r"^seed +7 +seed=7$", capsys.readouterr().out, re.M)
    with pytest.raises(SystemExit):
        main(["config", str(CONFIGS / "gsm8k.yaml"), "seed=7", "--model=/x"])
    assert "unrecognized arguments: --model=/x" in capsys.readouterr().err


def test_the_command_names_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(CONFIGS / "gsm8k.yaml"), "sed=7"]) == 2
    assert "areal-eval config: sed=7: there is no sed\nDid you mean seed?" in capsys.readouterr().err
