"""``--config``, ``--set`` and ``--show-config`` in a session: their place among the settings, and their mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.sessions import TINY

from pytest_areal_eval import evaluation
from pytest_areal_eval.backends.assembly import build_controller
from pytest_areal_eval.backends.choice import build_engine, engine_args
from pytest_areal_eval.collection.decorator import spec_of
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.settings import Settings

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
        (("--config=c.yaml", "--set=++gconfig.stop=['']"), "gconfig}: stop=[''] is not a string or a list of strings"),
        (("--config=c.yaml", "--set=++gconfig.min_new_tokens=-1"), "min-new-tokens=-1 is not a whole number of at"),
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


WHOLE = """
experiment_name: exp
trial_name: t1
rollout:
  request_timeout: 40
  request_retries: 2
  agent: {mode: subproc, subproc_max_workers: 2, engine_max_tokens: 77}
valid_dataset: {path: rows.jsonl, type: rl, split: test, batch_size: 8}
eval_workflow: support.sdk_agents.Either
"""


def test_a_test_without_arguments_evaluates_what_the_configuration_names(
    suite: Suite, journal_rows: Callable[[], list[dict[str, Any]]]
) -> None:
    """Its dataset, its workflow, and how agents run: here with their address in the environment."""
    pytest.importorskip("openai")
    source = "from pytest_areal_eval import evaluation\n\n@evaluation()\ndef test_valid(rollout):\n    pass\n"
    made = written(suite(source=source), WHOLE)
    (made.path / "rows.jsonl").write_text('{"q": "q1"}\n{"q": "q2"}\n')
    made.runpytest("--config=c.yaml").assert_outcomes(passed=2)
    assert [(row["reward"], row["metrics"]["keywords"]) for row in journal_rows()] == [(1.0, 0.0)] * 2
    (run,) = (path for path in (made.path / "eval-results").iterdir() if not path.is_symlink())
    assert "_exp-t1-" in run.name
    assert described(made)["workflow"] == "support.sdk_agents.Either"


def test_a_workflow_of_the_configuration_that_does_not_import_is_named_as_its(suite: Suite) -> None:
    source = "from pytest_areal_eval import evaluation\n\n@evaluation([{}])\ndef test_valid(rollout):\n    pass\n"
    made = written(suite(source=source), WHOLE.replace("support.sdk_agents.Either", "no.where.Flow"))
    result = made.runpytest("--config=c.yaml")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*--config: workflow='no.where.Flow': *No module named 'no'*"])


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("'d.jsonl', reward_fn='m.r'", ("d.jsonl", None, None, "m.r")),
        ("'d.jsonl'", ("d.jsonl", None, "w.W", "m.f")),
        ("split='dev', reward_fn='m.r'", (None, "dev", None, "m.r")),
        ("workflow='w.V'", ("c.jsonl", "test", "w.V", None)),
        ("", ("c.jsonl", "test", "w.W", "m.f")),
    ],
)
def test_a_configuration_completes_what_a_decorator_leaves_out(arguments: str, wanted: tuple[str | None, ...]) -> None:
    defaults = {"dataset": "c.jsonl", "split": "test", "workflow": "w.W", "reward_fn": "m.f"}
    mark = eval(f"evaluation({arguments})", {"evaluation": evaluation}).mark

    def test_it(rollout: Any) -> None:
        pass

    if wanted[0] is None:
        with pytest.raises(ConfigError, match="no dataset"):
            spec_of([mark], test_it, defaults)
        return
    spec = spec_of([mark], test_it, defaults)
    assert (spec.dataset, spec.split, spec.workflow, spec.reward_fn) == wanted


def test_limits_of_requests_reach_the_controller() -> None:
    yaml = {"request-timeout": 40.0, "request-attempts": 2, "episode-timeout": 40.0}
    controller = build_controller(Settings({"base-url": ["http://127.0.0.1:1/v1"]}, yaml=yaml), "m", None)
    assert (controller.settings.request_timeout_s, controller.settings.max_attempts) == (40.0, 2)


@pytest.mark.parametrize(
    ("backend", "flag"), [("hf", "--tokenizer"), ("vllm", "--tokenizer"), ("sglang", "--tokenizer-path")]
)
def test_a_tokenizer_elsewhere_reaches_the_server_and_the_prompts(
    backend: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("pytest_areal_eval.backends.choice.load_tokenizer", lambda path, **options: loaded.append(path))
    yaml = {"backend": backend, "tokenizer": {str(TINY): str(tmp_path)}}
    engine, load = build_engine(Settings(yaml=yaml), str(TINY), None)
    argv = engine.launch("eval/0", "t").argv
    assert argv[argv.index(flag) + 1] == str(tmp_path)
    load()
    assert loaded == [str(tmp_path)]
    other, _ = build_engine(Settings(yaml=yaml | {"tokenizer": {"/other": str(tmp_path)}}), str(TINY), None)
    assert flag not in other.launch("eval/0", "t").argv
