"""Overrides: Hydra's meaning of ``k=v``, ``+k=v``, ``++k=v`` and ``~k``, and its values, with fewer ways to fail."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_areal_eval.config.overrides import apply, nearest, parse_override
from pytest_areal_eval.config.value import parse_value
from pytest_areal_eval.errors import ConfigError

TREE: dict[str, Any] = {
    "seed": 1,
    "gconfig": {"n_samples": 4},
    "actor": {"path": "org/m", "scheduling_spec": [{"gpu": 1, "env_vars": {}}]},
    "rollout": {"scheduling_spec": "${actor.scheduling_spec}"},
    "ref": None,
}


def changed(*texts: str) -> dict[str, Any]:
    """The tree after some overrides."""
    tree = copy.deepcopy(TREE)
    for text in texts:
        apply(parse_override(text), tree, ["gconfig.n_samples", "gconfig.top_p", "eval_gconfig.temperature"])
    return tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-3", -3),
        ("1e-8", 1e-8),
        ("1.70e-5", 1.70e-5),
        (".5", 0.5),
        ("1.", 1.0),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("null", None),
        ("", ""),
        ("'null'", "null"),
        ('"123"', "123"),
        (r"'it\'s'", "it's"),
        ("/ckpt/step=100", "/ckpt/step=100"),
        ("/ckpt/[a]", "/ckpt/[a]"),
        ("/ckpt/a,b", "/ckpt/a,b"),
        ("/a path/with spaces", "/a path/with spaces"),
        ("hf://org/x@main", "hf://org/x@main"),
        ('"/ckpt/step=100"', "/ckpt/step=100"),
        ("megatron:(attn:d1|ffn:d1)", "megatron:(attn:d1|ffn:d1)"),
        ("1,2", "1,2"),
        ("2024-01-01", "2024-01-01"),
        ("${actor.path}", "${actor.path}"),
        ("[]", []),
        ("[1, two, '3']", [1, "two", "3"]),
        ("[${a.b}, x]", ["${a.b}", "x"]),
        ("[{gpu:2}]", [{"gpu": 2}]),
        ("{}", {}),
        ("{a: {b: [1, 2]}, 'c d': x y, url: http://h:1/p}", {"a": {"b": [1, 2]}, "c d": "x y", "url": "http://h:1/p"}),
        ("{a:}", {"a": None}),
    ],
)
def test_a_value_is_what_hydra_takes_it_for(text: str, value: Any) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(("text", "column"), [("[1, 2", 6), ("{a 1}", 5), ("'open", 1), ("[1]]", 4), ('"a" b', 5)])
def test_a_value_that_is_not_closed_shows_the_column(text: str, column: int) -> None:
    with pytest.raises(ConfigError, match=f"unexpected .* at column {column} of"):
        parse_value(text)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("seed=2", ("seed",), 2),
        ("actor.path=/ckpt/step=100,x y", ("actor", "path"), "/ckpt/step=100,x y"),
        ("gconfig.n_samples=8", ("gconfig", "n_samples"), 8),
        ("+gconfig.top_p=0.5", ("gconfig", "top_p"), 0.5),
        ("++seed=2", ("seed",), 2),
        ("++gconfig.top_p=0.5", ("gconfig", "top_p"), 0.5),
        ("+eval_gconfig.temperature=0.0", ("eval_gconfig", "temperature"), 0.0),
        ("+ref.path=x", ("ref", "path"), "x"),
        ("actor.scheduling_spec.0.gpu=2", ("actor", "scheduling_spec", 0, "gpu"), 2),
        ("+actor.scheduling_spec.0.env_vars.FOO=bar", ("actor", "scheduling_spec", 0, "env_vars", "FOO"), "bar"),
        ("actor.scheduling_spec=[{gpu:2}]", ("actor", "scheduling_spec"), [{"gpu": 2}]),
        ("gconfig={top_p: 1}", ("gconfig",), {"n_samples": 4, "top_p": 1}),
        ("actor=null", ("actor",), None),
        ("rollout.scheduling_spec=[]", ("rollout", "scheduling_spec"), []),
    ],
)
def test_an_override_changes_its_key(text: str, key: tuple[Any, ...], value: Any) -> None:
    found: Any = changed(text)
    for part in key:
        found = found[part]
    assert found == value


def test_a_mapping_within_a_mapping_is_merged_as_well() -> None:
    tree = changed("+actor.scheduling_spec.0.env_vars.A=x", "actor.scheduling_spec.0={env_vars: {B: y}}")
    assert tree["actor"]["scheduling_spec"] == [{"gpu": 1, "env_vars": {"A": "x", "B": "y"}}]


def test_a_removal_takes_the_key_away() -> None:
    assert "ref" not in changed("~ref")
    assert "seed" not in changed("~seed=1")
    assert changed("~actor.scheduling_spec.0")["actor"]["scheduling_spec"] == []
    assert changed("~gconfig.n_samples", "+gconfig.n_samples=2")["gconfig"] == {"n_samples": 2}


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("gconfig.top_p=0.5", "the file has no gconfig.top_p", "write +gconfig.top_p=0.5"),
        ("gconfig.n_sample=2", "there is no gconfig.n_sample", "Did you mean gconfig.n_samples?"),
        ("n_samples=2", "there is no n_samples", "Did you mean gconfig.n_samples?"),
        ("foo=1", "there is no foo", "lists the keys"),
        ("+seed=1", "seed exists already", "Write ++seed=1"),
        ("~evaluator", "there is no evaluator", ""),
        ("~seed=2", "seed is 1", "Write ~seed"),
        ("actor.scheduling_spec[0].gpu=2", "an index is written with a dot", "actor.scheduling_spec.0.gpu=2"),
        ("actor.scheduling_spec.1.gpu=2", "there is no", "actor.scheduling_spec.0.gpu"),
        ("+actor.scheduling_spec.1=2", "there is no actor.scheduling_spec.1", ""),
        ("rollout.scheduling_spec.0.gpu=2", "is a reference to actor.scheduling_spec", "actor.scheduling_spec.0.gpu"),
        ("seed.x=2", "there is no seed.x", ""),
        ("seed", "no value", "seed=VALUE"),
        ("+seed", "no value", "+seed=VALUE"),
        ("=3", "no override", "KEY=VALUE"),
        ("a..b=3", "no override", "KEY=VALUE"),
        ("", "no override", "KEY=VALUE"),
        ("seed=[1", "unexpected end", "A list is"),
    ],
)
def test_an_override_that_names_nothing_says_what_to_write(text: str, said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(text)
    assert said in caught.value.args[0]
    assert text.strip() in caught.value.args[0]
    assert hint in caught.value.hint


def test_the_nearest_key_is_alike_or_ends_alike() -> None:
    assert nearest("rollout.backed", ["rollout.backend", "actor.backend"]) == "rollout.backend"
    assert nearest("backend", ["x", "rollout.backend"]) == "rollout.backend"
    assert nearest("zzz", ["seed"]) is None


scalars = (
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.from_regex(r"[a-z][a-z0-9_/.]{0,8}", fullmatch=True)
)
values = st.recursive(
    scalars.filter(lambda v: v not in ("true", "false", "null", "inf", "nan")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), inner),
    max_leaves=8,
)


def written(value: Any) -> str:
    """A value in Hydra's notation."""
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(child)}" for key, child in value.items()) + "}"
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or value is True or value is False
        else str(value)
    )


@given(values)
def test_a_value_that_is_written_is_read_back(value: Any) -> None:
    assert parse_value(written(value)) == value


@given(st.text() | st.text(alphabet="+~=.abseed012[]{}'\",: $"))
def test_any_text_is_an_override_or_one_clear_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        changed(text)
