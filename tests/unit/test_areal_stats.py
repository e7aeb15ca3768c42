"""AReaL's dictionary of a session: true counts, each episode once, nothing lost in a merge."""

from __future__ import annotations

import json

import pytest

from pytest_areal_eval.api import Episode, EpisodeStatus
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal.record import decode_line, encode_line, episode_from_dict, episode_to_dict
from pytest_areal_eval.stats import EpisodeResult, ItemResult, StatsTracker, Trackers, tracker
from pytest_areal_eval.stats.areal import areal_cells, own_stats, session_stats
from pytest_areal_eval.stats.cells import export_cells
from pytest_areal_eval.stats.tabulate_stats import fitting_table, tabulate_stats

S = EpisodeStatus


def recorded(**values: float) -> dict[str, dict[str, object]]:
    t = StatsTracker("eval-rollout")
    t.scalar(**values)
    return t.state()


def scored(reward: float = 1.0, latency_s: float = 2.0, **more: object) -> EpisodeResult:
    return EpisodeResult(S.SCORED, reward, latency_s=latency_s, **more)  # type: ignore[arg-type]


def test_rejected_is_a_true_count_and_its_reward_counts_as_zero() -> None:
    stats = session_stats({"test_a": [scored(), scored(0.5), EpisodeResult(S.TIMEOUT, latency_s=5.0)]})
    assert stats == {
        "eval-rollout/reward": 0.5,
        "eval-rollout/reward__count": 3,
        "eval-rollout/accepted": 2.0,
        "eval-rollout/rejected": 1.0,
        "timeperf/episode": 3.0,
        "timeperf/episode__count": 3,
    }


def test_episodes_that_were_given_up_are_in_no_number() -> None:
    assert session_stats({"test_a": [EpisodeResult(S.CANCELLED)]}) == {}
    assert session_stats({"test_a": [EpisodeResult(S.CANCELLED), scored()]})["eval-rollout/reward__count"] == 1


def test_each_of_several_evaluations_has_its_reward_and_its_counts() -> None:
    stats = session_stats({"test_a": [scored(1.0)], "test_b": [scored(0.0), EpisodeResult(S.REJECTED)]})
    assert (stats["eval-rollout/reward"], stats["eval-rollout/reward__count"]) == (pytest.approx(1 / 3), 3)
    assert (stats["eval-rollout/test_a/reward"], stats["eval-rollout/test_b/reward"]) == (1.0, 0.0)
    assert (stats["eval-rollout/rejected"], stats["eval-rollout/test_b/rejected"]) == (1.0, 1.0)
    assert "timeperf/test_a/episode" not in stats


def test_what_a_workflow_recorded_replaces_its_metric_and_never_the_reward() -> None:
    own = recorded(reward=9.0, turns=3.0)
    stats = export_cells(areal_cells([scored(1.0, metrics={"turns": 3.0, "length": 7.0}, stats=own)]))
    assert (stats["eval-rollout/reward"], stats["eval-rollout/turns__count"]) == (1.0, 1)
    assert stats["eval-rollout/length"] == 7.0
    assert own_stats([scored(stats=own)]) == {"eval-rollout/turns": 3.0, "eval-rollout/turns__count": 1}


def test_areals_example_of_a_merge_keeps_its_mean_and_its_counts() -> None:
    workers = [Trackers(), Trackers()]
    for trackers, rewards in zip(workers, ([1.0], [0.0] * 3), strict=True):
        trackers.add(areal_cells([scored(reward) for reward in rewards]))
    together = Trackers()
    together.merge(trackers.state() for trackers in workers)
    found = together.export_all()
    assert (found["eval-rollout/reward"], found["eval-rollout/reward__count"]) == (0.25, 4)
    assert (found["eval-rollout/accepted"], found["eval-rollout/rejected"]) == (4.0, 0.0)


def test_a_metric_and_a_record_of_one_key_are_merged_or_kept_apart() -> None:
    own, metric = scored(stats=recorded(turns=3.0)), scored(metrics={"turns": 5.0})
    assert session_stats({"test_a": [own, metric]})["eval-rollout/turns"] == 4.0
    t = StatsTracker("eval-rollout")
    t.denominator(turns=[True])
    other = session_stats({"test_a": [own, scored(stats=t.state()), metric]})
    assert (other["eval-rollout/turns"], other["eval-rollout/turns (sum)"]) == (4.0, 1.0)


def test_recorded_statistics_travel_on_reports_and_in_the_journal() -> None:
    episode = Episode(item_id="a", status=S.SCORED, reward=1.0, stats=recorded(turns=2.0, worst=float("inf")))
    line = encode_line(episode_to_dict(episode))
    assert episode_from_dict(decode_line(line)) == episode
    item = ItemResult("a", (EpisodeResult.from_episode(episode),))
    assert ItemResult.from_dict(json.loads(json.dumps(item.to_dict()))) == item
    assert "stats" not in episode_to_dict(Episode(item_id="a", status=S.SCORED, reward=1.0))


@pytest.mark.parametrize("stats", [{"k": {}}, {"k": 1}, [1], {"k": {"type": "?", "sum": 0, "count": 0, "min": 0}}])
def test_a_journal_line_with_broken_statistics_is_refused(stats: object) -> None:
    record = episode_to_dict(Episode(item_id="a", status=S.SCORED, reward=1.0)) | {"stats": stats}
    with pytest.raises(JournalError, match="item 'a', episode 0"):
        episode_from_dict(record)


def test_an_episodes_records_are_its_own_until_they_are_added() -> None:
    trackers = Trackers()

    def episode() -> dict[str, float]:
        cells = tracker.adopt(trackers)
        tracker.get("eval-rollout").scalar(turns=2.0)
        tracker.absorb(recorded(turns=4.0))
        assert trackers.export_all() == {}
        return export_cells(cells)

    import contextvars

    found = contextvars.copy_context().run(episode)
    assert found == {"eval-rollout/turns": 3.0, "eval-rollout/turns__count": 2}


def test_a_tracker_of_nobodys_keeps_what_an_episode_tells_it() -> None:
    import contextvars

    def episode() -> dict[str, float]:
        tracker.adopt(Trackers())
        own = StatsTracker("mine")
        own.scalar(a=1.0)
        return own.export()

    assert contextvars.copy_context().run(episode) == {"mine/a": 1.0, "mine/a__count": 1}


def test_one_key_is_exported_and_forgotten_alone() -> None:
    t = StatsTracker("s")
    t.scalar(a=1.0, b=2.0)
    assert t.export(key="a") == {"s/a": 1.0, "s/a__count": 1}
    assert t.export("nothing") == {}
    assert t.export() == {"s/b": 2.0, "s/b__count": 1}


async def _wrapped(t: StatsTracker) -> None:
    @t.scope_func_wrapper("train")
    async def step() -> str:
        t.scalar(loss=1.0)
        return "done"

    assert await step() == "done"


def test_a_wrapped_function_records_under_its_scope() -> None:
    import asyncio

    t = StatsTracker()
    t.scope_func_wrapper("sync")(lambda: t.scalar(a=1.0))()
    asyncio.run(_wrapped(t))
    assert t.export() == {"sync/a": 1.0, "sync/a__count": 1, "train/loss": 1.0, "train/loss__count": 1}


def test_the_table_is_as_wide_as_the_terminal() -> None:
    stats = {f"eval-rollout/key-{n}": float(n) for n in range(8)}
    assert fitting_table(stats, 200) == tabulate_stats(stats).splitlines()
    assert max(map(len, fitting_table(stats, 80))) <= 80
    assert len(fitting_table(stats, 10)) == len(tabulate_stats(stats, col=1).splitlines())
    assert fitting_table({}, 80) == []
