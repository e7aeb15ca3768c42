"""What is hidden from run.json, and what must not be."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_areal_eval.redact import is_secret_name, redact

S = "s3cr3t-value"


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "API_KEY",
        "OPENAI_API_KEY",
        "apiKey",
        "APIKey",
        "x-api-key",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "token",
        "--token",
        "auth_token",
        "accessToken",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "password",
        "db_password",
        "client_secret",
        "Authorization",
        "credentials",
        "private_key",
        "OPENAI_KEY",
        "db_pwd",
        "session_cookie",
        "passphrase",
        "api_keys",
        "refresh_tokens",
    ],
)
def test_a_secrets_name_is_known(name: str) -> None:
    assert is_secret_name(name)
    assert redact({name: S}) == {name: "***"}
    assert redact({"env": {name: [S]}}) == {"env": {name: "***"}}
    assert S not in redact(f"{name}={S}")


@pytest.mark.parametrize(
    "name",
    [
        "max_new_tokens",
        "min_new_tokens",
        "stop_token_ids",
        "tokenizer",
        "pad_token",
        "eos_token",
        "skip_special_tokens",
        "input_tokens",
        "output_tokens",
        "tokens_per_second",
        "price_per_token",
        "key",
        "prompt_key",
        "answer_key",
        "monkey",
        "keyboard",
        "author",
        "PWD",
        "secretary",
        "tokenizer_path",
        "image_token",
        "model",
        "dataset",
        "seed",
    ],
)
def test_a_setting_is_no_secret(name: str) -> None:
    assert not is_secret_name(name)
    assert redact({name: 512}) == {name: 512}
    assert redact(f"--set={name}=512") == f"--set={name}=512"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"--set engine.api_key={S} -k x", "--set engine.api_key=*** -k x"),
        (f"--set=engine.api_key={S}", "--set=engine.api_key=***"),
        (f"--api-key {S} --limit 5", "--api-key *** --limit 5"),
        (f'--extra={{"api_key": "{S}", "n": 1}}', '--extra={"api_key": "***", "n": 1}'),
        (f"password='two words {S}' x", "password='***' x"),
        (f'password="it\'s {S}" x', 'password="***" x'),
        (f"token={S},api_key={S};n=1", "token=***,api_key=***;n=1"),
        (f"https://host/v1?api_key={S}&n=1", "https://host/v1?api_key=***&n=1"),
        (f"https://me:{S}@host/v1", "https://***@host/v1"),
        (f"curl -H 'Authorization: Bearer {S}'", "curl -H 'Authorization: ***'"),
        (f"Bearer {S}", "Bearer ***"),
        ("sk-proj-abcdefghijklmnop1234", "***"),
        ("use hf_abcdefghijklmnopqrstuv here", "use *** here"),
        ("ghp_abcdefghijklmnopqrstuvwxyz", "***"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "***"),
    ],
)
def test_a_secret_inside_a_string_is_masked_and_the_rest_kept(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "sglang:d4t2",
        "https://host:8000/v1",
        "reward >= 0.72",
        "a task-list-of-many-words-here",
        "evals/test_a.py::test[1]",
        "",
        "=",
        ":",
    ],
)
def test_ordinary_settings_are_kept_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_the_argument_after_a_secret_flag_is_masked() -> None:
    assert redact(["--token", S, "--limit", "5"]) == ["--token", "***", "--limit", "5"]
    assert redact(["--token", "--limit", "5"]) == ["--token", "--limit", "5"]


def test_an_empty_or_missing_secret_shows_that_it_is_so() -> None:
    assert redact({"api_key": "", "token": None, "password": False}) == {
        "api_key": "",
        "token": None,
        "password": False,
    }


def test_functions_and_classes_are_named_not_addressed() -> None:
    assert redact({"reward_fn": is_secret_name, "workflow": dict}) == {
        "reward_fn": "pytest_areal_eval.redact.is_secret_name",
        "workflow": "builtins.dict",
    }


def test_sets_are_sorted_and_keys_are_strings() -> None:
    assert redact({1: {"b", "a"}, None: (1, 2)}) == {"1": ["a", "b"], "None": [1, 2]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("api_key"), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_masking_twice_changes_nothing_more(value: Any) -> None:
    assert redact(redact(value)) == redact(value)


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "a=" * 100_000, "--a " * 50_000, "://" * 50_000, "Bearer " * 30_000, "'" * 200_000]
)
def test_a_long_string_takes_no_longer_than_its_length(text: str) -> None:
    started = time.process_time()
    redact(text)
    assert time.process_time() - started < 3
