"""What is learnt of an engine from the options, before anything starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import TINY_MATH

from pytest_areal_eval.backends.checks import check_engine
from pytest_areal_eval.backends.choice import build_engine, same_servers, unused_defaults
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.settings import Settings
from pytest_areal_eval.options.values import own_path


def checkpoint(path: Path, **generation_config: Any) -> str:
    shutil.copytree(TINY_MATH, path)
    (path / "generation_config.json").write_text(json.dumps(generation_config))
    return str(path)


def test_what_a_checkpoints_generation_config_would_have_changed_is_told(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "step-1", eos_token_id=2, temperature=0.6, top_k=20, repetition_penalty=None)
    said = unused_defaults(Settings(given={}), model)
    assert said == "step-1: its generation_config.json is not used: temperature 0.6, top_k 20"


def test_a_generation_config_that_only_ends_answers_is_not_mentioned(tmp_path: Path) -> None:
    assert unused_defaults(Settings(given={}), checkpoint(tmp_path / "step-1", eos_token_id=2)) == ""


def test_the_embedded_engine_serves_the_checkpoint_by_its_name() -> None:
    engine, _ = build_engine(Settings(given={}), str(TINY_MATH), None)
    assert engine.info.model == "tiny-math"


@pytest.mark.parametrize(("tokenizers", "same"), [({}, True), ({"one": "elsewhere"}, False)])
def test_checkpoints_share_servers_only_with_the_same_tokenizer(
    tmp_path: Path, tokenizers: dict[str, str], same: bool
) -> None:
    one, two = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two")
    given = {"tokenizer": {str(tmp_path / name): path for name, path in tokenizers.items()}}
    assert same_servers(Settings(given=given), one, two) is same


def test_a_name_at_an_endpoint_shares_no_servers() -> None:
    settings = Settings(given={"base-url": ["http://h"]})
    assert not same_servers(settings, "gpt-x", "gpt-y")


@pytest.mark.parametrize(
    ("arg", "said"),
    [("max-batch=0", "not a whole number above 0"), ("threads=x", "not a whole number"), ("dtype", "no value")],
)
def test_a_setting_of_the_embedded_engine_that_cannot_be_is_refused(arg: str, said: str) -> None:
    """With room for no sequence at all its server would answer nothing, for ever."""
    with pytest.raises(ConfigError, match=said):
        check_engine(Settings(given={"engine-arg": [arg]}))


def test_a_home_folder_is_found_where_no_shell_does_it() -> None:
    """A shell leaves the ``~`` of ``--engine-python=~/env/bin/python`` as it is."""
    assert own_path("~/env/bin/python") == str(Path.home() / "env/bin/python")


def test_words_for_another_engines_server_are_refused_rather_than_left_unread() -> None:
    with pytest.raises(ConfigError, match="--engine-cmd: the embedded engine has a server of its own"):
        check_engine(Settings(given={"engine-cmd": "vllm serve"}))
