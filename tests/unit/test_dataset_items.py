"""Item ids and the selection of items: properties first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_areal_eval.datasets import LoadedDataset, item_ids, load_dataset, select
from pytest_areal_eval.errors import ConfigError, DatasetError

names = st.lists(st.text(min_size=1, max_size=100), unique=True, min_size=1, max_size=40)


def dataset(rows: list[dict[str, Any]]) -> LoadedDataset:
    return load_dataset(rows, base_dir=Path("/"))


def ids_of(*values: Any) -> list[str]:
    return item_ids(dataset([{"id": value} for value in values]))


@given(names)
def test_ids_are_safe_short_and_distinct(raw: list[str]) -> None:
    ids = ids_of(*raw)
    assert len(set(ids)) == len(raw)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,60}", item_id) for item_id in ids)


@given(st.from_regex(r"[A-Za-z0-9._-]{1,60}", fullmatch=True))
def test_a_safe_id_is_kept(raw: str) -> None:
    assert ids_of(raw) == [raw]


@given(names, st.randoms(use_true_random=False))
def test_an_id_does_not_depend_on_the_order_of_the_rows(raw: list[str], rng: Any) -> None:
    before = dict(zip(raw, ids_of(*raw), strict=True))
    rng.shuffle(raw)
    assert dict(zip(raw, ids_of(*raw), strict=True)) == before


def test_a_record_without_an_id_is_called_by_its_padded_index() -> None:
    assert item_ids(dataset([{"q": 1}] * 43))[42] == "0042"
    assert item_ids(dataset([{"q": 1}] * 10_001))[7] == "00007"
    assert ids_of(None, 17, "x") == ["0000", "17", "x"]


def test_ids_that_collide_only_once_cleaned_get_a_hash() -> None:
    clean, first, second = ids_of("a-b", "a b", "a/b")
    assert clean == "a-b"
    assert re.fullmatch(r"a-b-[0-9a-f]{8}", first)
    assert re.fullmatch(r"a-b-[0-9a-f]{8}", second)
    assert first != second


def test_a_long_id_is_cut_and_stays_distinct() -> None:
    one, two = ids_of("x" * 61, "x" * 62)
    assert len(one) == len(two) == 60
    assert one != two
    assert ids_of("[gsm8k::test] 10 KB " + "y" * 10_000)[0].startswith("gsm8k--test--10-KB-yyy")


def test_a_duplicate_id_names_both_rows() -> None:
    with pytest.raises(DatasetError, match=r"records row 2: the id 'a' is already that of .*records row 0"):
        ids_of("a", "b", "a")
    with pytest.raises(DatasetError, match="the id '1' is already"):
        ids_of(1, "1")


@pytest.mark.parametrize("value", ["", 1.5, True, ["a"]])
def test_an_id_of_another_type_is_an_error(value: Any) -> None:
    with pytest.raises(DatasetError, match=r"row 1: the id .* is no text or whole number"):
        ids_of("a", value)


id_lists = st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), unique=True, max_size=60)


@given(id_lists, st.integers(1, 12), st.none() | st.integers(1, 70), st.integers(0, 5))
def test_shards_partition_the_selection(ids: list[str], parts: int, limit: int | None, seed: int) -> None:
    """C34: nothing is padded, doubled or lost."""
    whole = select(ids, limit=limit, seed=seed)
    shards = [select(ids, limit=limit, shard=(part, parts), seed=seed) for part in range(1, parts + 1)]
    assert sorted(index for shard in shards for index in shard) == whole
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert all(shard == sorted(shard) for shard in shards)


def test_a_shard_is_every_nth_item_so_that_each_has_its_part_of_what_stands_together() -> None:
    assert select(list("abcdefgh"), shard=(2, 3)) == [1, 4, 7]


@given(id_lists, st.integers(1, 70), st.integers(0, 5))
def test_a_sample_is_determined_and_has_the_asked_size(ids: list[str], limit: int, seed: int) -> None:
    chosen = select(ids, limit=limit, seed=seed)
    assert chosen == select(ids, limit=limit, seed=seed)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(limit, len(ids))


@given(id_lists, id_lists, st.integers(1, 30), st.integers(0, 5))
def test_appended_rows_displace_at_most_as_many(old: list[str], new: list[str], limit: int, seed: int) -> None:
    added = [item_id for item_id in new if item_id not in old]
    before = {old[i] for i in select(old, limit=limit, seed=seed)}
    after = {(old + added)[i] for i in select(old + added, limit=limit, seed=seed)}
    kept = after - set(added)
    assert kept <= before
    if len(before) == limit:
        assert len(before - kept) == len(after & set(added))


@given(id_lists, st.integers(1, 30), st.randoms(use_true_random=False))
def test_a_sample_does_not_depend_on_the_order(ids: list[str], limit: int, rng: Any) -> None:
    shuffled = list(ids)
    rng.shuffle(shuffled)
    assert {ids[i] for i in select(ids, limit=limit)} == {shuffled[i] for i in select(shuffled, limit=limit)}


def test_another_seed_draws_another_sample_and_all_rows_are_as_likely() -> None:
    ids = [f"{i:04d}" for i in range(100)]
    assert select(ids, limit=10, seed=1) != select(ids, limit=10, seed=2)
    counts = [0] * 100
    for seed in range(2000):
        for index in select(ids, limit=10, seed=seed):
            counts[index] += 1
    # Binomial(2000, 0.1): mean 200, standard deviation 13.4; five of those either way
    assert min(counts) > 133
    assert max(counts) < 267


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": -1}, {"shard": (0, 2)}, {"shard": (3, 2)}, {"shard": (1, 0)}]
)
def test_a_limit_or_shard_out_of_range_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"limit|shard"):
        select(["a", "b"], **options)


def test_an_id_in_another_script_keeps_what_it_can_and_is_never_dashes_alone() -> None:
    kept, nothing_left, alike, legal = ids_of("数学-17", "日本語", "数学", "-5")
    assert kept == "17"
    assert re.fullmatch(r"[0-9a-f]{8}", nothing_left)
    assert re.fullmatch(r"[0-9a-f]{8}", alike)
    assert legal == "-5"
