"""An episode's line: what survives the round trip and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_areal_eval.api import Episode, EpisodeStatus
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal.record import (
    SCHEMA,
    decode_line,
    encode_line,
    episode_from_dict,
    episode_to_dict,
)

SCORED = EpisodeStatus.SCORED
ANY_TEXT = st.lists(st.characters() | st.sampled_from("\ud83d\ude00\x85\u2028\u2029\r\n\0"), max_size=30).map("".join)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def round_trip(episode: Episode) -> Episode:
    return episode_from_dict(decode_line(encode_line(episode_to_dict(episode))))


def joined(text: str) -> str:
    """JSON spells a surrogate pair and the character that it means alike."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@given(ANY_TEXT, ANY_TEXT, st.sampled_from(EpisodeStatus), st.none() | FINITE, st.dictionaries(ANY_TEXT, FINITE))
def test_any_text_and_any_finite_number_come_back(
    item_id: str, text: str, status: EpisodeStatus, reward: float | None, metrics: dict[str, float]
) -> None:
    episode = Episode(item_id=item_id, status=status, reward=reward, metrics=metrics, completion=text, error=text)
    expected = dataclasses.replace(
        episode,
        item_id=joined(item_id),
        completion=joined(text),
        error=joined(text),
        metrics={joined(name): value for name, value in metrics.items()},
    )
    assert round_trip(episode) == expected


@given(ANY_TEXT)
def test_a_line_is_one_line_to_every_reader(text: str) -> None:
    line = encode_line(episode_to_dict(Episode(item_id="a", status=SCORED, completion=text)))
    assert line.endswith(b"\n")
    assert len(line.decode("utf-8").splitlines()) == 1


def test_lone_surrogates_and_control_characters_survive() -> None:
    text = "\x00\x1b[31m\r\n\x7f\x85\u2028\ud800 \udfff\ufeff"
    assert round_trip(Episode(item_id="a", status=SCORED, completion=text)).completion == text


def test_a_split_surrogate_pair_comes_back_as_its_character() -> None:
    assert round_trip(Episode(item_id="a", status=SCORED, completion="\ud83d\ude00")).completion == "😀"


def test_chinese_stays_readable_in_the_file() -> None:
    assert "答案是".encode() in encode_line(episode_to_dict(Episode(item_id="a", status=SCORED, completion="答案是")))


def test_every_field_of_an_episode_comes_back() -> None:
    values: dict[str, Any] = {
        field.name: {"str": "x", "int": 7, "float": 1.5}.get(str(field.type).removesuffix(" | None"))
        for field in dataclasses.fields(Episode)
    }
    values |= {"status": EpisodeStatus.TRUNCATED, "metrics": {"a": 0.5}, "transcript": ({"content": "x"},)}
    values["stats"] = {"eval-rollout/a": {"type": "sum", "count": 1, "sum": 2.0, "min": 2.0, "max": 2.0}}
    assert None not in values.values()
    episode = Episode(**values)
    assert round_trip(episode) == episode


def test_a_line_carries_its_schema_kind_time_and_extra() -> None:
    record = episode_to_dict(Episode(item_id="a", status=SCORED), {"prompt_hash": "ab"})
    assert (record["v"], record["kind"], record["extra"]) == (SCHEMA, "episode", {"prompt_hash": "ab"})
    assert record["at"] > 1.6e9


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_with_item_and_field(value: float) -> None:
    episode = Episode(evaluation="gsm8k", item_id="0042", index=3, status=SCORED, metrics={"length": value})
    with pytest.raises(JournalError, match=r"'0042', episode 3 of evaluation 'gsm8k'.*metrics\.length is -?(nan|inf)"):
        encode_line(episode_to_dict(episode))


def test_a_value_that_is_no_json_is_refused_with_its_name() -> None:
    with pytest.raises(JournalError, match=r"extra\.workflow is <object object"):
        encode_line(episode_to_dict(Episode(item_id="a", status=SCORED), {"workflow": object()}))


def test_numpy_numbers_are_written_as_numbers() -> None:
    metrics: dict[str, Any] = {"a": numpy.float32(0.5), "b": numpy.int64(3)}
    back = round_trip(Episode(item_id="a", status=SCORED, reward=numpy.float64(0.25), metrics=metrics))
    assert (back.reward, back.metrics) == (0.25, {"a": 0.5, "b": 3.0})


def test_a_true_zero_stays_zero() -> None:
    """C11: a real 0.0 was taken for no measurement."""
    assert round_trip(Episode(item_id="a", status=SCORED, reward=0.0)).reward == 0.0
    assert round_trip(Episode(item_id="a", status=SCORED, reward=None)).reward is None


def test_unknown_fields_are_ignored_and_missing_ones_get_defaults() -> None:
    record = {"v": 1, "kind": "episode", "item_id": "a", "status": "scored", "later_field": [1]}
    assert episode_from_dict(record) == Episode(item_id="a", status=SCORED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"item_id": 5}, "item_id is 5"),
        ({"item_id": None}, "item_id is None"),
        ({"evaluation": 1}, "names no item"),
        ({"index": -1}, "index is -1"),
        ({"index": True}, "index is True"),
        ({"index": "0"}, "index is '0'"),
        ({"status": "fine"}, "'fine' is not a valid EpisodeStatus"),
        ({"status": None}, "not a valid EpisodeStatus"),
        ({"reward": "1"}, "item 'a', episode 0"),
        ({"reward": math.inf}, "inf is no finite number"),
        ({"metrics": [1]}, "item 'a', episode 0"),
        ({"metrics": {"x": None}}, "item 'a', episode 0"),
        ({"latency_s": math.nan}, "nan is no finite number"),
    ],
)
def test_a_record_that_breaks_the_schema_says_where(change: dict[str, object], message: str) -> None:
    record = episode_to_dict(Episode(item_id="a", status=SCORED)) | change
    with pytest.raises(JournalError, match=message):
        episode_from_dict(record)


@pytest.mark.parametrize("line", [b"[1]\n", b"nul\n", b"", b"\xff{}\n", b'{"a": NaN}\n', b"[" * 100_000])
def test_what_is_no_json_object_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode_line(line)


def test_a_line_is_plain_json_to_other_tools() -> None:
    line = encode_line(episode_to_dict(Episode(item_id="a", status=SCORED, completion="\ud800é")))
    assert json.loads(line)["status"] == "scored"
