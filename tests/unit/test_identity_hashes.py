"""Hashes of prompts, records and datasets."""

from __future__ import annotations

import datetime
import subprocess
import sys
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_areal_eval.errors import DatasetError
from pytest_areal_eval.journal import dataset_identity, item_hash, prompt_hash


class Image:
    """Quacks like PIL's."""

    def __init__(self, pixels: bytes, mode: str = "RGB", size: tuple[int, int] = (2, 2)) -> None:
        self.pixels, self.mode, self.size = pixels, mode, size

    def tobytes(self) -> bytes:
        return self.pixels


@dataclass
class Point:
    x: int


class Plain:
    pass


@given(st.lists(st.characters() | st.sampled_from("\ud83d\ude00"), max_size=30).map("".join))
def test_any_prompt_has_a_hash(text: str) -> None:
    assert len(prompt_hash(text)) == 16
    assert prompt_hash(text) != prompt_hash(text + " ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON))
def test_the_order_of_keys_does_not_matter(record: dict[str, Any]) -> None:
    assert item_hash(record) == item_hash(dict(reversed(record.items())))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, 1.5),
        (None, "null"),
        ([1, 2], [2, 1]),
        (b"ab", b"ac"),
        (b"ab", "ab"),
        (Image(b"aaaa"), Image(b"aaab")),
        (Image(b"aaaa", size=(4, 1)), Image(b"aaaa", size=(1, 4))),
        (numpy.zeros(2), numpy.zeros(3)),
        (numpy.zeros(2, "int32"), numpy.zeros(2, "float32")),
        (torch.zeros(2), torch.ones(2)),
        (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
        ({"a"}, {"b"}),
        (Point(1), Point(2)),
        ("\ud800", "\udfff"),
    ],
)
def test_other_content_has_another_hash(one: object, other: object) -> None:
    assert item_hash({"x": one}) != item_hash({"x": other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        ({"b": 1, "a": 2}, MappingProxyType({"a": 2, "b": 1})),
        (bytearray(b"ab"), b"ab"),
        (Image(b"aaaa"), Image(b"aaaa")),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
        (Plain(), Plain()),
        ({"a", "b", "c"}, {"c", "b", "a"}),
    ],
)
def test_equal_content_has_an_equal_hash(one: object, other: object) -> None:
    assert item_hash({"x": one}) == item_hash({"x": other})


def test_a_hash_is_the_same_in_every_process() -> None:
    script = (
        "from pytest_areal_eval.journal import item_hash\n"
        "print(item_hash({'q': 'é', 'n': 1.5, 's': {'a', 'b', 'c'}, 'b': b'x', 'o': print}))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1


def test_a_hash_does_not_change_between_releases() -> None:
    """Runs of different versions are compared by it."""
    assert item_hash({"question": "1 + 1?", "answer": 2}) == "aaea1a0fbb0e4f83"
    assert prompt_hash("1 + 1?") == "c97c3a9c9b990740"


def test_a_record_that_cannot_be_hashed_is_an_error_not_a_crash() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    for record in (loop, {"x": {(1, 2): 3}}):
        with pytest.raises(DatasetError, match="cannot be hashed"):
            item_hash(record)


def test_a_datasets_identity_is_its_name_content_and_size() -> None:
    @dataclass(frozen=True)
    class Loaded:
        name: str
        content_hash: str
        records: list[dict[str, Any]]

    identity = dataset_identity(Loaded("gsm8k:test", "abc", [{}, {}]))
    assert identity == {"name": "gsm8k:test", "content_hash": "abc", "records": 2}
