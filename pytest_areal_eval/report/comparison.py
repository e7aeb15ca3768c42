"""Two saved runs held against each other, item by item.

Invariant: what differs beside the checkpoint (data, prompts, sampling, grading) is said first; then the difference of
two scores is no difference between two checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.errors import UserError
from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun, digests_of
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.report.text import answer_of
from pytest_areal_eval.stats import Baseline, Estimate, ItemResult
from pytest_areal_eval.stats.compare import Paired, difference_of, paired_difference

_GRADING = ("reward_fn", "workflow", "pass_mark")
_GRADING_CODE = ("reward_fn", "answer", "workflow", "workflow_kwargs")
_GRADERS = ("pytest-areal-eval", "math-verify")
_NOT_SAMPLING = ("n_samples", "seed")


@dataclass(frozen=True)
class Flip:
    """An item whose reward changed: what was answered before and after."""

    item_id: str
    before: float
    after: float
    answer_before: str
    answer_after: str
    gold: str


@dataclass(frozen=True)
class Comparison:
    """One evaluation in two runs.

    Attributes:
        name: the evaluation's in the candidate.
        baseline_name: the evaluation's in the baseline: another where two models of one session are compared.
        paired: the difference over the items that both have.
        flips: items whose reward changed, the largest change first.
        differs: what makes it no comparison of two checkpoints, one line each.
        remarks: what should be known all the same.
        only_before: items that the baseline alone has.
        only_after: items that the candidate alone has.
    """

    name: str
    baseline_name: str
    paired: Paired
    flips: Sequence[Flip]
    differs: Sequence[str]
    remarks: Sequence[str]
    only_before: Sequence[str]
    only_after: Sequence[str]


def compare_runs(before: SavedRun, after: SavedRun, pair: tuple[str, str] | None = None) -> list[Comparison]:
    """Compare every evaluation that both runs have.

    Args:
        before: the baseline.
        after: the candidate; may be the same run, where ``pair`` names two of its evaluations.
        pair: the evaluation in the baseline and the one in the candidate, where their names differ.

    Raises:
        UserError: they share no item.
    """
    found = [(counterpart(before, e.row), e.name) for e in after.evaluations.values()]
    wanted = [pair] if pair else [(mine.name, name) for mine, name in found if mine is not None]
    pairs = [
        (a, b) for a, b in wanted if b in after.evaluations and _shared(before.evaluations.get(a), after.evaluations[b])
    ]
    if not pairs:
        what = f" of {pair[0]} and {pair[1]}" if pair else ""
        raise UserError(
            f"{before.name} and {after.name} share no item{what} with all of its episodes",
            f"The first has {_names(before)}; the second {_names(after)}.",
        )
    return [_compare(before, after, a, b) for a, b in pairs]


def baselines(run: SavedRun) -> Callable[[Row], Baseline | None]:
    """What finds a row's baseline in a saved run: its counterpart there, or None where that has none."""

    def find(row: Row) -> Baseline | None:
        before = counterpart(run, row)
        return baseline_of(before.row, row, run.name) if before is not None and _common(before.row, row) else None

    return find


def baseline_of(before: Row, after: Row, name: str) -> Baseline:
    """What ``baseline`` means in the gates of ``after``; the differences are paired by item.

    Args:
        before: the evaluation in the baseline run.
        after: the same in the run whose gates are decided; the two share an item.
        name: the baseline run's.
    """
    shared = _common(before, after)
    results = {item_id: before.results[item_id] for item_id in shared}
    mine = replace(before, results=results, n_selected=len(results), gates=after.gates).summary()
    differences: dict[str, Estimate] = {"reward": _paired(before, after).difference}
    for metric in mine.metrics:
        both = [(_metric(before.results[i], metric), _metric(after.results[i], metric)) for i in shared]
        changes = [new - old for old, new in both if old is not None and new is not None]
        if changes:
            differences[metric] = difference_of(changes, agresti_min=False, bounded=False)
    return Baseline(name, mine, differences)


def change_since(before: Row, after: Row) -> str:
    """The paired difference in one line; empty where no item is in both."""
    shared = len(_common(before, after))
    if not shared:
        return ""
    p = _paired(before, after)
    interval = "" if p.difference.ci is None else ", 95 % interval [{:+.4f}, {:+.4f}]".format(*p.difference.ci)
    return (
        f"reward {p.baseline:.4f} → {p.candidate:.4f} over {shared} shared items: {p.difference.value:+.4f}{interval}, "
        f"p = {p_text(p.p_value)} ({p.test}), {p.better} better, {p.worse} worse"
    )


def p_text(value: float) -> str:
    """A p-value for people."""
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"


def counterpart(run: SavedRun, row: Row) -> SavedEvaluation | None:
    """The same evaluation in another run.

    Its name there may lack the checkpoint's, where that run had one alone, and the file's, where no other had the name.
    """
    same = run.evaluations.get(row.name) or run.evaluations.get(row.evaluation)
    return same or next((e for e in run.evaluations.values() if e.row.key == row.key), None)


def _compare(first: SavedRun, second: SavedRun, old: str, new: str) -> Comparison:
    before, after = first.evaluations[old], second.evaluations[new]
    return Comparison(
        name=new,
        baseline_name=old,
        paired=_paired(before.row, after.row),
        flips=_flips(before, after),
        differs=[
            *_data(before, after),
            *measured_otherwise(before.described, after.described),
            *_graders(first.info, second.info),
        ],
        remarks=_remarks(first, second, before, after),
        only_before=[i for i in before.episodes if i not in after.episodes],
        only_after=[i for i in after.episodes if i not in before.episodes],
    )


def _shared(before: SavedEvaluation | None, after: SavedEvaluation) -> list[str]:
    return [] if before is None else _common(before.row, after.row)


def _common(before: Row, after: Row) -> list[str]:
    """Items with results in both."""
    return [
        i
        for i, result in before.results.items()
        if result.finished and i in after.results and after.results[i].finished
    ]


def _paired(before: Row, after: Row) -> Paired:
    shared = _common(before, after)
    return paired_difference(
        *([[e.counted_reward for e in row.results[i].finished] for i in shared] for row in (before, after))
    )


def _flips(before: SavedEvaluation, after: SavedEvaluation) -> list[Flip]:
    flips = [_flip(i, before.episodes[i], after.episodes[i]) for i in _shared(before, after)]
    changed = [flip for flip in flips if flip.before != flip.after]
    return sorted(changed, key=lambda f: (-abs(f.after - f.before), f.after > f.before))


def _flip(item_id: str, before: Sequence[Episode], after: Sequence[Episode]) -> Flip:
    """Of several episodes, those are shown that went the way of the change."""
    old, new = (sum(e.counted_reward for e in group) / len(group) for group in (before, after))
    (was, now) = (max, min) if new < old else (min, max)
    first, second = was(before, key=_reward), now(after, key=_reward)
    return Flip(item_id, old, new, answer_of(first), answer_of(second), second.gold or first.gold or "")


def _reward(episode: Episode) -> float:
    return episode.counted_reward


def _data(before: SavedEvaluation, after: SavedEvaluation) -> list[str]:
    lines = []
    hashes = [e.described.get("dataset", {}).get("content_hash") for e in (before, after)]
    shared = _shared(before, after)
    changed = [
        i for i in shared if i in before.items and i in after.items and before.items[i].hash != after.items[i].hash
    ]
    if changed:
        lines.append(f"data: {len(changed)} of {len(shared)} shared items have other content: {_some(changed)}")
    elif hashes[0] != hashes[1] and not (before.items and after.items):
        lines.append(f"data: the datasets' contents differ ({hashes[0]} and {hashes[1]})")
    prompts = [i for i in shared if before.episodes[i][0].prompt != after.episodes[i][0].prompt]
    if prompts:
        lines.append(f"prompts: {len(prompts)} of {len(shared)} shared items were asked otherwise: {_some(prompts)}")
    return lines


def measured_otherwise(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What makes the scores of one evaluation no measure of the same thing: sampling, template, grading.

    Args:
        before: what the baseline's ``run.json`` says of the evaluation.
        after: what the other's says.
    """
    sampling = [{k: v for k, v in _part(d, "sampling").items() if k not in _NOT_SAMPLING} for d in (before, after)]
    lines = [f"sampling: {text}" for text in _differences(*sampling)]
    lines += [f"template: {text}" for text in _differences(_part(before, "template"), _part(after, "template"))]
    grading = [{name: d.get(name) for name in _GRADING} for d in (before, after)]
    lines += [f"grading: {text}" for text in _differences(*grading)]
    code = [n for n in code_changes(before, after, _GRADING_CODE) if before.get(n) == after.get(n)]
    return lines + [f"grading: its {name} changed" for name in code]


def code_changes(before: Mapping[str, Any], after: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Which of an evaluation's functions are not what they were; none where a run does not tell."""
    was, now = _part(before, "identity"), _part(after, "identity")
    return [name for name in names if name in was and name in now and was[name] != now[name]]


def _graders(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    versions = [{name: info.get("versions", {}).get(name) for name in _GRADERS} for info in (before, after)]
    return [f"grading: {text}" for text in _differences(*versions)]


def _remarks(first: SavedRun, second: SavedRun, before: SavedEvaluation, after: SavedEvaluation) -> list[str]:
    digests = [digests_of(run.info) for run in (first, second)]
    remarks = (
        ["the same checkpoint: this is the noise of running it again"]
        if digests[0] == digests[1] != [] and first.path != second.path
        else []
    )
    if before.row.n_samples != after.row.n_samples:
        remarks.append(f"{before.row.n_samples} episodes an item against {after.row.n_samples}")
    return remarks


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [f"{name} is {a.get(name)!r} and {b.get(name)!r}" for name in sorted({*a, *b}) if a.get(name) != b.get(name)]


def _part(described: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return described.get(name) or {}


def _metric(result: ItemResult, name: str) -> float | None:
    values = [e.metrics[name] for e in result.finished if name in e.metrics]
    return sum(values) / len(values) if values else None


def _some(ids: Sequence[str]) -> str:
    return f"{', '.join(ids[:3])}{', …' if len(ids) > 3 else ''}"


def _names(run: SavedRun) -> str:
    return ", ".join(f"{row.name} ({len(row.results)})" for row in run.rows) or "none"
