"""AReaL's table, byte for byte."""

from __future__ import annotations

import pytest

from pytest_areal_eval.stats import tabulate_stats


def test_the_table_is_areals_byte_for_byte() -> None:
    assert tabulate_stats({"rollout/reward": 0.7255, "rollout/accepted": 1.0}) == (
        "╒════════════════╤════════════╤══════════════════╤════════════╕\n"
        "│ rollout/reward │ 7.2550e-01 │ rollout/accepted │ 1.0000e+00 │\n"
        "╘════════════════╧════════════╧══════════════════╧════════════╛"
    )


def test_columns_fill_from_top_to_bottom() -> None:
    lines = tabulate_stats(dict.fromkeys("abcdef", 1.0)).splitlines()
    keys = [[c for c in line if c in "abcdf"] for line in lines if "1.0000e+00" in line]
    assert keys == [["a", "c"], ["b", "d", "f"]]
    assert len(lines) == 5


def test_the_number_of_columns_and_the_format_can_be_chosen() -> None:
    assert "│ a │ 0.50 │" in tabulate_stats({"a": 0.5, "b": 0.25}, col=1, floatfmt=".2f")


def test_nothing_gives_an_empty_string() -> None:
    assert tabulate_stats({}) == ""


def test_no_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="col=0"):
        tabulate_stats({"a": 1.0}, col=0)
