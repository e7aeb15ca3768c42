"""AReaL's tracker: its keys, its masks, scopes per task, and merges that lose nothing."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_areal_eval.stats import ReduceType, StatsTracker, Trackers, tracker


def test_a_scalar_exports_its_mean_and_its_count() -> None:
    t = StatsTracker("eval-rollout")
    for reward in (1.0, 0.0, 0, True):
        t.scalar(reward=reward)
    assert t.export() == {"eval-rollout/reward": 0.5, "eval-rollout/reward__count": 4}


def test_export_empties_the_tracker_unless_told_otherwise() -> None:
    t = StatsTracker()
    t.scalar(a=1.0)
    assert t.export(reset=False) == t.export() == {"a": 1.0, "a__count": 1}
    assert t.export() == {}


@pytest.mark.parametrize(
    ("reduce_type", "expected"),
    [
        (None, {"x/avg": 2.0, "x/min": 1.0, "x/max": 3.0}),
        (ReduceType.AVG_MIN_MAX, {"x/avg": 2.0, "x/min": 1.0, "x/max": 3.0}),
        (ReduceType.AVG, {"x": 2.0}),
        (ReduceType.SUM, {"x": 4.0}),
        (ReduceType.MIN, {"x": 1.0}),
        (ReduceType.MAX, {"x": 3.0}),
    ],
)
def test_a_masked_array_exports_areals_keys(reduce_type: ReduceType | None, expected: dict[str, float]) -> None:
    t = StatsTracker()
    t.denominator(n=[True, False, True])
    t.stat("n", reduce_type, x=[1.0, 100.0, 3.0])
    assert t.export() == {"n": 2.0, **expected}


def test_a_mask_that_keeps_nothing_gives_no_mean() -> None:
    t = StatsTracker()
    t.denominator(n=[False])
    t.stat("n", x=[7.0])
    t.stat("n", ReduceType.SUM, y=[7.0])
    assert t.export() == {"n": 0.0, "y": 0.0}


def test_arrays_of_numpy_and_torch_are_read() -> None:
    import numpy as np
    import torch

    t = StatsTracker()
    t.scalar(a=np.float32(0.5), b=torch.tensor([2.0]))
    t.denominator(n=torch.tensor([[True, False], [True, True]]))
    t.stat("n", x=np.array([[1, 2], [3, 4]]), y=[torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])])
    out = t.export()
    assert (out["a"], out["b"], out["x/max"], out["y/avg"]) == (0.5, 2.0, 4.0, 8 / 3)


def test_empty_arrays_record_nothing() -> None:
    t = StatsTracker()
    t.denominator(n=[], m=[True])
    t.stat("m", x=[], y=[1.0])
    assert t.export() == {"m": 1.0, "y/avg": 1.0, "y/min": 1.0, "y/max": 1.0}


def _tracker_with_mask() -> StatsTracker:
    t = StatsTracker("s")
    t.denominator(n=[[True, True, False]])
    return t


@pytest.mark.parametrize(
    ("denominator", "values", "message"),
    [
        ("m", [1.0], "denominator 's/m' of 'x' does not exist"),
        ("n", [1.0, 2.0, 3.0], r"'x' has shape \(3,\), its denominator 'n' \(1, 3\)"),
        ("n", [[1.0], [2.0, 3.0]], "'x' is ragged"),
    ],
)
def test_an_array_that_does_not_fit_its_mask_is_refused(denominator: str, values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _tracker_with_mask().stat(denominator, x=values)


def test_a_mask_must_hold_booleans() -> None:
    with pytest.raises(ValueError, match="'n' must hold booleans"):
        StatsTracker().denominator(n=[1, 0])


def test_scalar_is_no_way_to_reduce_an_array() -> None:
    with pytest.raises(ValueError, match=r"call scalar\(\.\.\.\)"):
        _tracker_with_mask().stat("n", ReduceType.SCALAR, x=[[1.0, 2.0, 3.0]])


def test_a_key_cannot_change_its_type() -> None:
    t = _tracker_with_mask()
    t.stat("n", x=[[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match="'s/x' was recorded as avg_min_max before and cannot be scalar"):
        t.scalar(x=1.0)


def test_scopes_nest_and_can_be_left() -> None:
    t = StatsTracker("/eval/")
    with t.scope("/a/"), t.scope("b"):
        t.scalar(x=1)
        with t.disable_scope():
            t.scalar(y=1)
    t.scalar(z=1)
    assert [key for key in t.export() if "__" not in key] == ["eval/a/b/x", "y", "eval/z"]


def test_a_scope_ends_with_an_exception() -> None:
    t = StatsTracker()
    with pytest.raises(RuntimeError), t.scope("a"):
        raise RuntimeError
    t.scalar(x=1)
    assert "x" in t.export()


def test_concurrent_tasks_do_not_see_each_others_scopes_and_masks() -> None:
    t = StatsTracker("eval")

    async def episode(name: str, value: float) -> None:
        with t.scope(name):
            await asyncio.sleep(0)
            t.denominator(n=[True, value > 50])
            await asyncio.sleep(0)
            t.stat("n", ReduceType.SUM, x=[value, 1000.0])
            with t.disable_scope():
                t.denominator(n=[value > 50])
                await asyncio.sleep(0)
                t.stat("n", ReduceType.SUM, all=[value])

    async def main() -> None:
        await asyncio.gather(*(episode(f"e{i}", float(i)) for i in range(100)))

    asyncio.run(main())
    out = t.export()
    assert [out[f"eval/e{i}/x"] for i in range(100)] == [i + 1000.0 * (i > 50) for i in range(100)]
    assert out["all"] == sum(range(51, 100))


def test_timings_are_recorded_outside_of_every_scope() -> None:
    t = StatsTracker("eval")
    with t.scope("a"), pytest.raises(KeyError), t.record_timing("generate"):
        raise KeyError
    out = t.export()
    assert out["timeperf/generate__count"] == 1
    assert 0.0 <= out["timeperf/generate"] < 1.0


def test_threads_lose_nothing_while_another_exports() -> None:
    t = StatsTracker()

    def record() -> None:
        for _ in range(500):
            t.scalar(x=1.0)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = 0.0
    while any(thread.is_alive() for thread in threads):
        seen += t.export().get("x__count", 0)
    for thread in threads:
        thread.join(timeout=10)
    assert seen + t.export().get("x__count", 0) == 2000


def test_means_are_weighted_by_count_when_merged() -> None:
    """AReaL's conformance example: rewards 1.0 (n=1) and 0.0 (n=3) merge to 0.25, and here the count stays."""
    a, b = StatsTracker("eval-rollout"), StatsTracker("eval-rollout")
    a.scalar(reward=1.0)
    for _ in range(3):
        b.scalar(reward=0.0)
    total = StatsTracker()
    total.merge([a.state(), b.state()])
    assert total.export() == {"eval-rollout/reward": 0.25, "eval-rollout/reward__count": 4}


_VALUE = st.integers(-1000, 1000).map(float)
_RECORD = st.one_of(
    st.tuples(st.just("scalar"), st.lists(_VALUE, min_size=1, max_size=1)),
    *(st.tuples(st.just(t.value), st.lists(_VALUE, min_size=1, max_size=4)) for t in ReduceType if t != "scalar"),
)


@settings(deadline=None)
@given(st.lists(st.lists(_RECORD, max_size=6), max_size=4), st.data())
def test_any_split_over_workers_merges_to_what_one_tracker_records(
    workers: list[list[tuple[str, list[float]]]], data: st.DataObject
) -> None:
    whole, merged = StatsTracker("s"), StatsTracker()
    for records in workers:
        one = StatsTracker("s")
        for kind, values in records:
            mask = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
            for t in (one, whole):
                _record(t, kind, values, mask)
        merged.merge([json.loads(json.dumps(one.state(), allow_nan=False))])
    assert merged.state() == whole.state()
    assert merged.export() == whole.export()


def _record(t: StatsTracker, kind: str, values: Sequence[float], mask: Sequence[bool]) -> None:
    if kind == "scalar":
        t.scalar(scalar=values[0])
    else:
        t.denominator(n=mask)
        t.stat("n", ReduceType(kind), **{kind: values})


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("first", [True, False])
def test_infinities_and_nan_survive_the_merge(value: float, first: bool) -> None:
    a, b = StatsTracker(), StatsTracker()
    for t, x in ((a, value), (b, 1.0)):
        t.denominator(n=[True])
        t.stat("n", x=[x])
    total = StatsTracker()
    states = [a.state(), b.state()] if first else [b.state(), a.state()]
    total.merge(json.loads(json.dumps(states, allow_nan=False)))
    out = total.export()
    expected = {"x/avg": value, "x/min": min(value, 1.0), "x/max": max(value, 1.0)}
    if math.isnan(value):
        expected = dict.fromkeys(expected, math.nan)
    assert {key: out[key] for key in expected} == pytest.approx(expected, nan_ok=True)


def test_trackers_of_all_scopes_export_together() -> None:
    trackers = Trackers()
    trackers.get("eval-rollout").scalar(reward=1.0)
    trackers.get("/eval-rollout/").scalar(reward=0.0)
    with trackers.get().scope("eval-rollout"):
        trackers.get().scalar(reward=0.5)
    assert trackers.export_all(reset=False) == {"eval-rollout/reward": 0.5, "eval-rollout/reward__count": 3}
    other = Trackers()
    other.merge([trackers.state(reset=True)])
    assert other.export_all() == {"eval-rollout/reward": 0.5, "eval-rollout/reward__count": 3}
    assert trackers.export_all() == {}


def test_tasks_record_into_the_trackers_of_their_controller() -> None:
    first, second = Trackers(), Trackers()

    async def episode(value: float) -> None:
        await asyncio.sleep(0)
        tracker.get("eval-rollout").scalar(reward=value)

    async def main() -> None:
        tasks = []
        for trackers, value in ((first, 1.0), (second, 2.0)):
            with tracker.use(trackers):
                tasks.append(asyncio.create_task(episode(value)))
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert first.export_all()["eval-rollout/reward"] == 1.0
    assert second.export_all()["eval-rollout/reward"] == 2.0


def test_trackers_are_current_only_where_they_are_used() -> None:
    outer, inner = Trackers(), Trackers()
    with tracker.use(outer):
        with tracker.use(inner):
            assert tracker.current() is inner
        assert tracker.current() is outer


def test_a_plain_script_has_trackers_of_its_own() -> None:
    def script() -> None:
        tracker.get("rollout").scalar(reward=1.0)
        exported.append(tracker.current().export_all())

    exported: list[dict[str, float]] = []
    for _ in range(2):
        thread = threading.Thread(target=script)
        thread.start()
        thread.join(timeout=10)
    assert exported == [{"rollout/reward": 1.0, "rollout/reward__count": 1}] * 2
