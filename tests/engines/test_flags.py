"""Settings on a server's command line."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_areal_eval.engines.base import EngineInfo
from pytest_areal_eval.engines.flags import as_flags, merge, parse_engine_args
from pytest_areal_eval.engines.installed import release
from pytest_areal_eval.engines.server import check_args, context_of, recommended
from pytest_areal_eval.errors import ConfigError, RequestError


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"max_num_seqs": 64, "enforce_eager": True}, ("--max-num-seqs", "64", "--enforce-eager")),
        ({"a": None, "b": False, "c": "", "d": []}, ()),
        ({"zero": 0, "rate": 0.0}, ("--zero", "0", "--rate", "0.0")),
        ({"sizes": [1, 2]}, ("--sizes", "1", "2")),
        ({"limits": {"image": 4}}, ("--limits", '{"image": 4}')),
    ],
)
def test_settings_become_flags(settings: dict[str, Any], flags: tuple[str, ...]) -> None:
    assert as_flags(settings) == flags


def test_the_last_word_wins_in_either_spelling() -> None:
    assert merge({"max_num_seqs": 256}, {"max-num-seqs": 64}) == {"max_num_seqs": 64}


@pytest.mark.parametrize("off", [{"enable_prefix_caching": False}, {"no_enable_prefix_caching": True}])
def test_a_default_can_be_switched_off_in_the_servers_words_and_in_areals(off: dict[str, Any]) -> None:
    merged = merge({"enable_prefix_caching": True}, off)
    assert as_flags(merged) == ("--no-enable-prefix-caching",)


def test_engine_args_are_read() -> None:
    found = parse_engine_args(["max-num-seqs=64", "--enforce-eager", "a_b=x=y", "c=false", "d=null"])
    assert found == {"max_num_seqs": "64", "enforce_eager": True, "a_b": "x=y", "c": False, "d": None}


def test_none_is_a_value_of_servers() -> None:
    """``grammar-backend=none`` switches SGLang's grammars off; left out, it would be xgrammar."""
    assert as_flags(parse_engine_args(["grammar-backend=none"])) == ("--grammar-backend", "none")


@pytest.mark.parametrize("text", ["=3", "", "a b=3", "--"])
def test_an_engine_arg_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no flag's name"):
        parse_engine_args([text])


def test_a_value_that_a_shell_lost_is_not_left_out_unsaid() -> None:
    with pytest.raises(ConfigError, match="--engine-arg=max-num-seqs=: no value"):
        parse_engine_args(["max-num-seqs="])


def test_a_field_of_a_setting_is_spelt_as_the_server_has_it() -> None:
    found = parse_engine_args(["compilation-config.cudagraph_mode=NONE"])
    assert as_flags(merge(found)) == ("--compilation-config.cudagraph_mode", "NONE")


@pytest.mark.parametrize("info", [{"concurrency": 0}, {"concurrency": -3}, {"context_length": 0}])
def test_a_server_without_room_for_anything_is_none_that_is_ready(info: dict[str, int]) -> None:
    """It would be sent nothing, and the run would wait for ever."""
    with pytest.raises(ValueError, match="no room"):
        EngineInfo(**info)


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.9.2", "0.10.2"), ("0.10.1rc1", "0.10.2+cpu"), ("0.5.9", "0.5.10.post1"), ("0.10", "0.10.2")],
)
def test_releases_are_compared_as_numbers(older: str, newer: str) -> None:
    assert release(older) < release(newer)


@pytest.mark.parametrize(
    ("kv_tokens", "most", "context", "wanted"),
    [(174_720, 256, 2048, 170), (10_000_000, 256, 32768, 256), (1000, 256, 2048, 16), (1000, 4, 512, 4)],
)
def test_concurrency_follows_the_kv_cache(kv_tokens: int, most: int, context: int, wanted: int) -> None:
    assert recommended(kv_tokens, most, context) == wanted


@pytest.mark.parametrize(
    ("setting", "instead"),
    [("port", "--base-url"), ("served-model-name", "--model"), ("tp-size", "--backend"), ("--tp", "--backend")],
)
def test_what_follows_from_other_options_cannot_be_set_apart_from_them(setting: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead):
        check_args("sglang", {"max_running_requests": 8, setting: 2})


def test_a_server_of_another_model_is_not_waited_for() -> None:
    models = {"data": [{"id": "step-1", "max_model_len": 64}, {"id": "adapter"}]}
    assert (context_of(models, "step-1"), context_of(models, "adapter")) == (64, None)
    with pytest.raises(RequestError, match="serves step-1, adapter, not step-2"):
        context_of(models, "step-2")
