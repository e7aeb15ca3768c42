"""Before anything runs: the rows that a session expects, what it says of them, and the mistakes that need no engine.

Invariant: what is wrong here is one usage error, and nothing was started for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.collection.groups import Group
from pytest_areal_eval.collection.resolution import samples_of, sampling_of
from pytest_areal_eval.errors import UserError
from pytest_areal_eval.report.scoreboard import Row, Scoreboard
from pytest_areal_eval.report.text import printable
from pytest_areal_eval.runs.run import Run
from pytest_areal_eval.session.session import EvaluationSession
from pytest_areal_eval.stats import Gate, parse_gate, split_gate_option

if TYPE_CHECKING:
    from pytest_areal_eval.options.settings import Settings


def regroup(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Bring each evaluation's tests together at its first one; everything else keeps its place."""
    blocks: dict[Any, list[pytest.Item]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        param = callspec.params.get("item") if callspec else None
        plan = getattr(param, "plan", None)
        key = (item.nodeid[: item.nodeid.rfind(param.id)], id(plan)) if plan is not None and param is not None else item
        blocks.setdefault(key, []).append(item)
    return [item for block in blocks.values() for item in block]


def refuse_mistakes(config: pytest.Config, evaluations: EvaluationSession) -> None:
    """Find what cannot work.

    Raises:
        UserError: an option is wrong, or another plugin is in the way.
    """
    _refuse_doubled_runs(config)
    refuse_wrong_options(config, evaluations.settings)
    _refuse_unused_sources(evaluations)


def refuse_wrong_options(config: pytest.Config, settings: Settings) -> None:
    """Find what is wrong with the options whatever is collected, and register the trackers that they name.

    Raises:
        UserError: an option is wrong.
    """
    from pytest_areal_eval.backends.assembly import check_options

    if "rescore" not in settings.given and "from-run" not in settings.given:  # which have no engine
        check_options(settings)
    trackers = settings.get("track", [])
    if trackers and "from-run" in settings.given:
        raise UserError(
            "--track with --from-run: that run's scores were tracked when it was made", "Leave out --track."
        )
    if trackers and not hasattr(config, "workerinput"):
        from pytest_areal_eval.runs.trackers import register_trackers

        register_trackers(config, trackers)


def expected_rows(evaluations: EvaluationSession) -> Iterator[Row]:
    """A row for each evaluation, with the decorator's gates and those options that name it.

    Raises:
        UserError: a gate is none, or names no selected evaluation.
    """
    optional = [split_gate_option(text) for text in evaluations.settings.get("gate", [])]
    rows = [_row(group, evaluations) for group in evaluations.groups.values()]
    _refuse_unused_gates(optional, rows)
    for row in rows:
        mine = [gate for name, gate in optional if name == "*" or name in row.names]
        row.gates = list(dict.fromkeys([*row.gates, *mine]))
        yield row


def _row(group: Group, evaluations: EvaluationSession) -> Row:
    return Row(
        key=group.key,
        name=group.name,
        evaluation=group.evaluation,
        model=group.model_name,
        file=group.items[0].location[0],
        gates=[parse_gate(text) for text in group.plan.spec.gates],
        n_samples=samples_of(group, evaluations.settings),
        n_selected=len(group.items),
        n_planned=len(group.plan.selected),
        n_total=len(group.plan.ids),
        pass_mark=group.plan.spec.pass_mark,
        shard=group.plan.shard,
    )


def _refuse_doubled_runs(config: pytest.Config) -> None:
    """pytest-asyncio-cooperative runs every collected test itself, after whatever loop has run them."""
    for name in ("asyncio-cooperative", "pytest_asyncio_cooperative.plugin"):
        if config.pluginmanager.hasplugin(name):
            raise UserError(
                f"{name} runs every test a second time beside evaluations",
                f"Leave it out with -p no:{name}; the episodes of an evaluation run concurrently without it.",
            )


def _refuse_unused_gates(optional: Sequence[tuple[str, Gate]], rows: Sequence[Row]) -> None:
    """A gate that names no selected evaluation would silently never be decided."""
    known = {name for row in rows for name in row.names}
    for name, gate in optional:
        if name != "*" and name not in known:
            names = ", ".join(row.name for row in rows)
            raise UserError(f"--gate={name}:{gate}: no selected evaluation is named {name!r}", f"There are: {names}.")


def _refuse_unused_sources(evaluations: EvaluationSession) -> None:
    """A misspelt ``--dataset NAME=`` would silently leave the evaluation on other data."""
    unused = evaluations.planner.unused_sources()
    if unused:
        names = ", ".join(dict.fromkeys(group.plan.function.__name__ for group in evaluations.groups.values()))
        raise UserError(f"--dataset={unused[0]}=…: no evaluation is named {unused[0]!r}", f"There are: {names}.")


def header_lines(run: Run, board: Scoreboard) -> list[str]:
    """What runs, on what, and how it samples."""
    from pytest_areal_eval.backends.assembly import idle_options
    from pytest_areal_eval.backends.choice import describe_engine, unused_defaults

    evaluations, settings = run.evaluations, run.evaluations.settings
    source = settings.get("replay") or ", ".join(settings.get("model", [])) or "no --model"
    what = "replay" if settings.get("replay") else describe_engine(settings)
    lines = [f"areal-eval: {source}, {what}, seed {settings.get('seed', 0)}"]
    if evaluations.history is not None:
        from pytest_areal_eval.runs.earlier import description

        lines.append(f"  {description(run, evaluations.history)}")
    lines += [f"  {remark}" for remark in (*settings.remarks, idle_options(settings)) if remark]
    if not settings.get("replay"):
        lines += [f"  {line}" for model in settings.get("model", []) if (line := unused_defaults(settings, model))]
    for group in evaluations.groups.values():
        lines += _header_of(group, board.rows[group.key].gates, settings)
    return [printable(line) for line in lines]


def _header_of(group: Group, gates: Sequence[Gate], settings: Settings) -> list[str]:
    """An evaluation's items and sampling, and what can be said against them before anything runs."""
    sampling, n_samples = sampling_of(group, settings), samples_of(group, settings)
    how = "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}"
    how += f", at most {sampling.max_new_tokens} new tokens"
    recorded = settings.get("replay") is not None
    compared = settings.get("baseline") is not None
    doubts = [doubt for gate in gates if (doubt := gate.doubt(n_samples, with_baseline=compared))]
    if sampling.greedy and n_samples > 1 and not recorded:
        doubts.append(f"greedy: an item's {n_samples} answers are the same one; give a temperature to have them differ")
    return [
        f"  {group.name}: {len(group.items)} of {len(group.plan.ids)} items x {n_samples}, "
        f"{'as recorded' if recorded else how}, data {group.plan.data.content_hash[:8]}",
        *(f"    {doubt}" for doubt in doubts),
    ]
