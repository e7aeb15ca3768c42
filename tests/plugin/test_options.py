"""Options: both spellings, ini keys, precedence, refusals in the words typed, and peace with other plugins."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Suite = Callable[..., pytest.Pytester]

SHOW = """
import json
from pytest_areal_eval.plugin import SETTINGS

def test_show(pytestconfig):
    settings = pytestconfig.stash[SETTINGS]
    with open("settings.json", "w") as file:
        json.dump({"given": dict(settings.given), "ini": dict(settings.ini)}, file)
"""

VALUES: list[tuple[str, str, Any]] = [
    ("model", "ckpt", ["ckpt"]),
    ("backend", "hf:d2", "hf:d2"),
    ("scheduler", "local", "local"),
    ("limit", "200", 200),
    ("shard", "2/3", [2, 3]),
    ("n-samples", "4", 4),
    ("temperature", "0", 0.0),
    ("top-p", "0.95", 0.95),
    ("top-k", "40", 40),
    ("max-new-tokens", "64", 64),
    ("seed", "7", 7),
    ("max-concurrency", "12", 12),
    ("episode-timeout", "2.5", 2.5),
    ("gate", "test_a:reward >= 0.5", ["test_a:reward >= 0.5"]),
    ("replay", "answers.jsonl", "answers.jsonl"),
    ("results-dir", "out", "out"),
]
FLAGS = ["greedy", "gate-partial", "adaptive-concurrency"]


def settings_of(made: pytest.Pytester, *arguments: str) -> dict[str, dict[str, Any]]:
    """What the plugin understood."""
    result = made.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.OK, result.stderr.str()
    found: dict[str, dict[str, Any]] = json.loads((made.path / "settings.json").read_text())
    return found


@pytest.mark.parametrize("prefix", ["--", "--areal-"])
def test_every_option_is_understood_in_both_spellings(suite: Suite, prefix: str) -> None:
    joined = [f"{prefix}{name}={value}" for name, value, _ in VALUES] + [prefix + name for name in FLAGS]
    wanted = {name: value for name, _, value in VALUES} | dict.fromkeys(FLAGS, True)
    made = suite(source=SHOW)
    assert settings_of(made, *joined, "--areal-order=collection")["given"] == wanted | {"order": "collection"}
    apart = [part for name, value, _ in VALUES for part in (prefix + name, value)]
    assert settings_of(made, *apart, "test_evals.py")["given"] == {name: value for name, _, value in VALUES}


def test_every_option_has_an_ini_key(suite: Suite) -> None:
    keys = [f"areal_{name.replace('-', '_')} = {value}" for name, value, _ in VALUES]
    keys += [f"areal_{name.replace('-', '_')} = true" for name in FLAGS] + ["areal_order = completion"]
    found = settings_of(suite(source=SHOW, ini="\n".join(keys)))
    assert found["given"] == {}
    wanted = {name: value for name, _, value in VALUES} | dict.fromkeys(FLAGS, True)
    assert found["ini"] == wanted | {"order": "completion"}


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("limit", "0", "0 is below 1"),
        ("limit", "many", "'many' is not a whole number"),
        ("shard", "4/3", "'4/3' is not i/n"),
        ("n-samples", "0", "0 is below 1"),
        ("temperature", "-1", "-1 is not 0 or more"),
        ("temperature", "nan", "nan is not 0 or more"),
        ("top-p", "1.5", "1.5 is not above 0 and at most 1"),
        ("top-k", "0", "0 is below 1"),
        ("max-new-tokens", "-5", "-5 is below 1"),
        ("seed", "x", "'x' is not a whole number"),
        ("max-concurrency", "0", "0 is below 1"),
        ("episode-timeout", "0", "0 is not above 0 seconds"),
        ("scheduler", "kubernetes", "'kubernetes' is not local, ray or slurm"),
    ],
)
def test_a_bad_value_is_refused_in_the_spelling_that_was_typed(
    suite: Suite, option: str, value: str, reason: str
) -> None:
    made = suite(source=SHOW)
    for spelling in (f"--{option}", f"--areal-{option}"):
        result = made.runpytest(f"{spelling}={value}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {spelling}: {reason}*"])
    made = suite(source=SHOW, ini=f"areal_{option.replace('-', '_')} = {value}")
    result = made.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*areal_{option.replace('-', '_')}*{reason}*"])


def test_precedence_is_builtin_ini_decorator_command_line(suite: Suite) -> None:
    plain = suite(rows=1).runpytest()
    plain.stdout.fnmatch_lines(["*x 1, greedy*"])
    ini = suite(rows=1, ini="areal_temperature = 0.3\nareal_n_samples = 2").runpytest()
    ini.stdout.fnmatch_lines(["*x 2, temperature 0.3*"])
    decorated = suite(rows=1, more=", temperature=0.5, n_samples=3", ini="areal_temperature = 0.3\nareal_n_samples = 2")
    decorated.runpytest().stdout.fnmatch_lines(["*x 3, temperature 0.5*"])
    decorated.runpytest("--temperature=0.9", "--n-samples=4").stdout.fnmatch_lines(["*x 4, temperature 0.9*"])
    decorated.runpytest("--greedy").stdout.fnmatch_lines(["*x 3, greedy*"])


def test_options_that_exclude_each_other_are_refused(suite: Suite) -> None:
    made = suite(rows=1)
    result = made.runpytest("--greedy", "--temperature=0.7")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --greedy and --temperature=0.7 exclude each other; give one"])
    made.runpytest("--greedy", "--temperature=0").stdout.fnmatch_lines(["*x 1, greedy*"])


def test_several_greedy_samples_are_questioned_before_they_run(suite: Suite) -> None:
    result = suite(rows=1).runpytest("--greedy", "--n-samples=4")
    result.stdout.fnmatch_lines(["*x 4, greedy*", "*greedy: an item's 4 answers are the same one; give a temperature*"])


def test_help_has_a_group_that_explains_each_option(suite: Suite) -> None:
    text = suite(source=SHOW).runpytest("--help").stdout.str()
    assert "evaluation of language-model checkpoints" in text
    for name in [name for name, _, _ in VALUES] + FLAGS:
        assert f"--areal-{name}" in text
        assert f"(also --{name})" in text.replace("\n", " ").replace("  ", " ") or f"--{name})" in text
        assert f"areal_{name.replace('-', '_')}" in text


def test_markers_are_listed(suite: Suite) -> None:
    suite(source=SHOW).runpytest("--markers").stdout.fnmatch_lines(["@pytest.mark.evaluation(dataset*"])


def test_an_option_of_a_users_conftest_keeps_its_meaning(suite: Suite) -> None:
    """The prefixed spelling still works where a short one is taken."""
    made = suite(
        source=SHOW + "\n\ndef test_theirs(pytestconfig):\n    assert pytestconfig.getoption('model') == 'theirs'\n"
    )
    made.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--model', default='theirs')\n")
    assert settings_of(made, "--areal-model=ours", "--limit=3")["given"] == {"model": ["ours"], "limit": 3}
    assert settings_of(made, "--model=theirs")["given"] == {}
    assert settings_of(made, "--model", "theirs")["given"] == {}


def test_an_option_of_another_plugin_keeps_its_meaning(suite: Suite) -> None:
    made = suite(
        source=SHOW + "\n\ndef test_theirs(pytestconfig):\n    assert pytestconfig.getoption('seed') == 'theirs'\n"
    )
    made.makepyfile(other_plugin="def pytest_addoption(parser):\n    parser.addoption('--seed', dest='seed')\n")
    made.syspathinsert()
    found = settings_of(made, "-p", "other_plugin", "--seed=theirs", "--areal-seed=5")
    assert found["given"] == {"seed": 5}


def test_a_value_that_looks_like_a_path_is_no_place_to_collect_from(suite: Suite) -> None:
    made = suite(source=SHOW)
    made.mkdir("ckpt")
    (made.path / "ckpt" / "test_trap.py").write_text("def test_trap(): assert 0")
    assert settings_of(made, "--model", "ckpt", "test_evals.py")["given"] == {"model": ["ckpt"]}
    made.runpytest("--areal-model", "ckpt", "test_evals.py").assert_outcomes(passed=1)


@pytest.mark.parametrize(("spelling", "places"), [("--model", ("evals",)), ("--areal-model", ())])
def test_a_checkpoint_beside_the_suite_does_not_bring_its_own_settings(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, spelling: str, places: tuple[str, ...]
) -> None:
    """pytest looks for its ini file beside every path that it is given, also beside an option's value."""
    top = suite(source=SHOW).path
    (top / "tox.ini").unlink()
    (top / "project" / "evals").mkdir(parents=True)
    (top / "test_evals.py").rename(top / "project" / "evals" / "test_evals.py")
    (top / "lab" / "ckpt").mkdir(parents=True)
    (top / "lab" / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(top / "project")
    arguments = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:asyncio", *places]
    refused = run_here(*arguments, spelling, "../lab/ckpt")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"Write {spelling}=../lab/ckpt" in refused.stderr
    assert run_here(*arguments, f"{spelling}=../lab/ckpt").returncode == pytest.ExitCode.OK
    assert run_here(*arguments, "--rootdir=.", spelling, "../lab/ckpt").returncode == pytest.ExitCode.OK
    (top / "lab" / "pytest.ini").unlink()
    refused = run_here(*arguments, spelling, "../lab/ckpt")  # else the rootdir is what the two have in common
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    (top / "project" / "pytest.ini").write_text("[pytest]\n")
    harmless = run_here(*arguments, spelling, "../lab/ckpt") if places else None
    assert harmless is None or harmless.returncode == pytest.ExitCode.OK


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own: pytester's own options would set the rootdir."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], capture_output=True, text=True, timeout=60)


def test_addopts_may_hold_our_options(suite: Suite) -> None:
    made = suite(source=SHOW)
    made.makeini("[pytest]\naddopts = -p no:asyncio -p no:randomly --limit=5 --areal-seed 3\n")
    assert settings_of(made)["given"] == {"limit": 5, "seed": 3}


def test_options_without_an_evaluation_disturb_nobody(suite: Suite) -> None:
    made = suite(source="def test_plain(): pass")
    assert made.runpytest("--model=missing", "--limit=3").ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model=nowhere",), "*nowhere*"),
        (("--backend=sglang",), "*sglang is not installed*"),
        (("--backend=nonsense",), "*nonsense*"),
        (("--gate", "reward >> 1"), "*reward >> 1*"),
        (("--dataset", "test_gms=x.jsonl"), "*no evaluation is named 'test_gms'*"),
    ],
)
def test_what_cannot_work_is_one_usage_error_before_anything_starts(
    suite: Suite, arguments: tuple[str, ...], message: str
) -> None:
    made = suite(rows=3)
    result = made.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    assert not (made.path / "eval-results").exists()


def test_without_model_or_replay_the_message_says_what_to_give(suite: Suite) -> None:
    made = suite(rows=3)
    made.makeconftest("")
    result = made.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no checkpoint to evaluate", "Give --model=PATH, or --replay=FILE*"])
