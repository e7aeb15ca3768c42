"""What ``--base-url`` and ``--api-key-env`` may say."""

from __future__ import annotations

import argparse

import pytest

from pytest_areal_eval.backends.choice import attach_to
from pytest_areal_eval.engines.addresses import given_endpoints
from pytest_areal_eval.engines.http import openai_path
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.settings import Settings
from pytest_areal_eval.options.values import variable_name


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://h:8000", "http://h:8000/v1/models"),
        ("http://h:8000/", "http://h:8000/v1/models"),
        ("http://h:8000/v1", "http://h:8000/v1/models"),
        ("https://h/v1/", "https://h/v1/models"),
        ("https://h/team/v1", "https://h/team/v1/models"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai/models"),
    ],
)
def test_addresses_are_taken_as_openai_clients_take_them(url: str, asked: str) -> None:
    endpoint = given_endpoints([url], "")[0]
    assert endpoint.base_url + openai_path(endpoint, "/models") == asked


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (["h:8000"], "--base-url=h:8000: not an address"),
        (["ftp://h"], "not an address"),
        (["http://"], "--base-url=http://: not an address"),
        (["http:///v1"], "not an address"),
        (["http://h:99999"], "not an address"),
        (["http://h:abc/v1"], "not an address"),
        (["http://h..h/v1"], "not an address"),
        (["http://h h/v1"], "not an address"),
        (["http://[::1/v1"], "not an address"),
        (["HTTP://h", "http://h/v1"], "given twice"),
        (["HTTP://h#x"], "Leave out #x"),
        (["http://h", "http://h/"], "given twice"),
        (["http://h", "http://h/v1"], "given twice"),
        (["http://h/v1/chat/completions"], "Leave out /chat/completions"),
        (["http://h/v1?key=1"], "Leave out [?]key=1"),
    ],
)
def test_what_is_no_address_or_stands_there_twice_is_refused(urls: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        given_endpoints(urls, "")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://me:hidden@h/v1", "--api-key-env"),
        ("https://me:hidden@h:x/v1", "--base-url=https://[*]{3}@h:x/v1: not an address"),
        ("https://me:hid/hidden@h/v1", "--base-url=https://[*]{3}@h/v1: not an address"),
        ("me:hidden@h", "--base-url=[*]{3}@h: not an address"),
        ("https://h/v1?api_key=hidden", "Leave out [?]api_key=[*]{3}"),
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        given_endpoints([url], "")
    assert "hidden" not in str(refusal.value)


@pytest.mark.parametrize("key", ["one\r\nX-More: 2", "schlüssel", "\udce9"])
def test_what_no_header_can_carry_is_no_key(key: str) -> None:
    with pytest.raises(ConfigError, match="--api-key-env: the variable's value is no key"):
        given_endpoints(["http://h"], key)


def test_a_key_may_end_with_the_line_break_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-1\n")
    assert attach_to(Settings(given={"base-url": ["http://h"], "api-key-env": "KEY"}))[0].token == "sk-1"


def test_a_key_in_the_place_of_its_variables_name_is_refused_and_not_shown() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="the name of the one that holds the key"):
        variable_name("sk-1")
