"""``--config``, ``--set`` and ``--show-config`` in a session: their place among the settings, and their mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_areal_eval.engine_choice import engine_args
from pytest_areal_eval.options import Settings

Suite = Callable[..., pytest.Pytester]

CONFIG = """
seed: 5
actor: {path: org/model}
rollout: {backend: "vllm:d2", max_concurrent_rollouts: 3}
gconfig: {n_samples: 2, temperature: 0.9, max_new_tokens: 50, stop: [END]}
vllm: {model: "${actor.path}", max_num_seqs: 64, skip_tokenizer_init: true}
"""

SAMPLING = "seed: 5\ngconfig: {n_samples: 2, temperature: 0.9, max_new_tokens: 50, stop: [END]}\n"
"""For suites whose engine is a rule: no checkpoint and no backend."""

SHOW = """
import json
from pytest_areal_eval.plugin import SETTINGS

def test_show(pytestconfig):
    settings = pytestconfig.stash[SETTINGS]
    with open("settings.json", "w") as file:
        json.dump({"given": dict(settings.given), "ini": dict(settings.ini), "yaml": dict(settings.yaml)}, file)
"""


def settings_of(made: pytest.Pytester, *arguments: str) -> dict[str, dict[str, Any]]:
    """What the plugin understood."""
    result = made.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.OK, result.stderr.str() + result.stdout.str()
    found: dict[str, dict[str, Any]] = json.loads((made.path / "settings.json").read_text())
    return found


def described(made: pytest.Pytester) -> Mapping[str, Any]:
    """The newest run's settings and sampling, as ``run.json`` keeps them."""
    newest = max((made.path / "eval-results").glob("*/run.json"), key=lambda p: p.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads(newest.read_text())
    (evaluation,) = found["evaluations"].values()
    return {"settings": found["settings"], **evaluation}


def written(made: pytest.Pytester, text: str = CONFIG) -> pytest.Pytester:
    """Put a configuration beside the suite."""
    (made.path / "c.yaml").write_text(text)
    return made


def test_a_configuration_is_below_the_ini_file(suite: Suite) -> None:
    made = written(suite(source=SHOW, ini="areal_seed = 9"))
    found = settings_of(made, "--config=c.yaml")
    assert found["given"] == {"config": "c.yaml"}
    assert found["yaml"] == {
        "seed": 5,
        "max-concurrency": 3,
        "backend": "vllm:d2",
        "model": ["org/model"],
        "vllm": {"max_num_seqs": 64},
        "n-samples": 2,
        "temperature": 0.9,
        "max-new-tokens": 50,
        "stop": ["END"],
    }


def test_an_override_is_typed_and_an_option_is_typed_too(suite: Suite) -> None:
    made = written(suite(source=SHOW))
    typed = ("--set", "gconfig.max_new_tokens=70", "--set=actor.path=/ckpt/step=1,a b", "--max-new-tokens=90")
    found = settings_of(made, "--config", "c.yaml", *typed)
    assert (found["given"]["max-new-tokens"], found["given"]["model"]) == (90, ["/ckpt/step=1,a b"])
    assert "max-new-tokens" not in found["yaml"]


def test_a_model_replaces_the_checkpoint_wherever_it_is_named(suite: Suite) -> None:
    made = written(suite(source=SHOW), CONFIG + "tokenizer_path: org/another\n")
    found = settings_of(made, "--config=c.yaml", "--model=/mine", "--backend=hf")
    assert found["given"]["model"] == ["/mine"]
    assert "model" not in found["yaml"]
    assert "model" not in found["yaml"]["vllm"]


@pytest.mark.parametrize("option", ["--base-url=http://127.0.0.1:1/v1", "--replay=answers.jsonl"])
def test_a_configurations_servers_are_not_started_beside_others(suite: Suite, option: str) -> None:
    found = settings_of(written(suite(source=SHOW)), "--config=c.yaml", option)
    assert "backend" not in found["yaml"]
    assert ("model" in found["yaml"]) == option.startswith("--base-url")


def test_an_ini_file_may_name_the_configuration(suite: Suite) -> None:
    made = written(suite(source=SHOW, ini="areal_config = c.yaml\nareal_set =\n    seed=6\n    ++gconfig.top_p=0.5"))
    (made.path / "below").mkdir()
    found = settings_of(made, "test_evals.py")
    assert (found["given"]["seed"], found["given"]["top-p"]) == (6, 0.5)


@pytest.mark.parametrize(
    ("more", "arguments", "wanted"),
    [
        ("", (), {"temperature": 0.9, "greedy": False, "max_new_tokens": 50, "stop": ["END"]}),
        (", temperature=0.3", (), {"temperature": 0.3, "max_new_tokens": 50}),
        (", temperature=0.3", ("--set=gconfig.temperature=0.4",), {"temperature": 0.4}),
        (", temperature=0.3", ("--set=gconfig.temperature=0.4", "--temperature=0.5"), {"temperature": 0.5}),
        (", greedy=True", (), {"greedy": True, "temperature": 0.0}),
        (", greedy=True", ("--set=+gconfig.greedy=false",), {"greedy": False, "temperature": 0.9}),
        ("", ("--greedy",), {"greedy": True, "temperature": 0.0}),
        (", stop=['x']", (), {"stop": ["x"]}),
        (", temperature=0.3", ("--set=+gconfig.greedy=true",), {"greedy": True, "temperature": 0.0}),
        (
            ", temperature=0.3",
            ("--set=+gconfig.greedy=true", "--temperature=0.5"),
            {"greedy": False, "temperature": 0.5},
        ),
    ],
)
def test_sampling_is_decided_by_the_highest_that_speaks(
    suite: Suite, more: str, arguments: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    made = written(suite(rows=1, more=more, rule="return 'a0'"), SAMPLING)
    made.runpytest("--config=c.yaml", *arguments)
    sampling = described(made)["sampling"]
    assert {name: sampling[name] for name in wanted} == wanted


def test_a_decorators_temperature_is_not_undone_by_a_greedy_configuration(suite: Suite) -> None:
    text = SAMPLING.replace("temperature: 0.9", "greedy: true")
    made = written(suite(rows=1, more=", temperature=0.3", rule="return 'a0'"), text)
    made.runpytest("--config=c.yaml")
    assert described(made)["sampling"]["temperature"] == 0.3
    assert described(made)["settings"]["yaml"]["n-samples"] == 2


def test_an_engines_section_is_below_its_arguments() -> None:
    section = {"max_num_seqs": 64, "no_enable_prefix_caching": True}
    settings = Settings(
        {"engine-arg": ["max-num-seqs=8"]}, yaml={"backend": "vllm:d2", "vllm": section, "sglang": {"x": 1}}
    )
    assert engine_args(settings) == {"max_num_seqs": "8", "no_enable_prefix_caching": True}
    assert engine_args(Settings({"backend": "hf"}, yaml={"vllm": section})) == {}


def test_unknown_keys_are_one_line_of_the_header_and_no_warning(suite: Suite) -> None:
    made = written(suite(rows=1, rule="return 'a0'"), SAMPLING + "gconfg: {}\neconf: 1\n")
    result = made.runpytest("--config=c.yaml", "-W", "error")
    line = "  c.yaml: unknown keys, ignored: gconfg (did you mean gconfig?), econf"
    assert result.outlines.count(line) == 1
    assert "warnings summary" not in result.stdout.str()


def test_the_configuration_is_shown_and_nothing_runs(suite: Suite) -> None:
    made = written(suite())
    result = made.runpytest("--config=c.yaml", "--set=seed=8", "--show-config", "--limit=3")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["seed *8 *--set seed=8", "gconfig.n_samples *2 *c.yaml:5", "as options", "n-samples *2 *"]
    )
    assert "collected" not in result.stdout.str()
    assert not (made.path / "eval-results").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set=seed=1",), "--set needs a configuration"),
        (("--show-config",), "--show-config needs a configuration"),
        (("--config=nope.yaml",), "nope.yaml: no such file"),
        (("--config=c.yaml", "--set=sed=1"), "--set sed=1: there is no sed"),
        (("--config=c.yaml", "--set=seed=abc"), "--set seed=abc: seed: 'abc' is not a whole number"),
        (
            ("--config=c.yaml", "--set=gconfig.n_samples=0"),
            "--set gconfig.n_samples=0, ${gconfig}: n-samples: 0 is below 1",
        ),
        (("--config=c.yaml", "--set=gconfig.temperature=-1"), "temperature: -1.0 is not 0 or more"),
        (("--config=c.yaml", "--set=rollout.backend=fsdp:d4"), "fsdp trains and serves nothing"),
        (("--config=c.yaml", "--set=+scheduler.type=k8s"), "scheduler: 'k8s' is not local, ray or slurm"),
        (("--config=c.yaml", "--set=seed=1", "--show-config", "--set=x"), "--set x: no value"),
    ],
)
def test_a_mistake_is_one_usage_error(suite: Suite, arguments: tuple[str, ...], said: str) -> None:
    result = written(suite()).runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert said in text
    assert "Traceback" not in text + result.stdout.str()
    assert "INTERNALERROR" not in text + result.stdout.str()


def test_workers_read_the_same_configuration(suite: Suite) -> None:
    made = written(suite(rows=4, rule="return 'a' + question[1:]"), SAMPLING)
    result = made.runpytest("--config=c.yaml", "--set=gconfig.n_samples=3", "-n2")
    result.assert_outcomes(passed=4)
    assert described(made)["n_samples"] == 3
