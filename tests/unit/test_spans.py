"""How long an evaluation's episodes ran, whatever order they are told in."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.runs import episode

from pytest_areal_eval.report.spans import Spans, spans_of

TIMES = st.tuples(st.integers(1, 60), st.integers(0, 10)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(TIMES))
def test_overlapping_times_count_once(times: list[tuple[int, int]]) -> None:
    spans = Spans(times)
    assert spans.total_s == len({second for start, end in times for second in range(start, end)})
    assert (spans.began, spans.ended) == (min((s for s, _ in times), default=0), max((e for _, e in times), default=0))
    pairs = spans.pairs()
    assert all(end < following for (_, end), (following, _) in pairwise(pairs))


def test_an_item_whose_episodes_ran_on_two_days_did_not_run_in_between() -> None:
    episodes = [episode("a", 0, started_at=1000.0, latency_s=3.0), episode("a", 1, started_at=90_000.0, latency_s=2.0)]
    assert spans_of(episodes).total_s == 5.0
