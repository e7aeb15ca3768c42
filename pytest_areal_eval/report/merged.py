"""Several runs of disjoint items as one run.

Invariant: what is merged agrees in everything that makes a score but the items, and no episode is in two parts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_areal_eval.errors import ConfigError, JournalError, UserError
from pytest_areal_eval.journal import Journal, RunFolder
from pytest_areal_eval.journal.items import copy_items
from pytest_areal_eval.report.comparison import baseline_of, compare_runs
from pytest_areal_eval.report.saved import SavedRun, digests_of, read_run, settings_of
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.report.stats import write_stats
from pytest_areal_eval.stats import Baseline, Gate, Verdict, decide, undecided
from pytest_areal_eval.stats.verdicts import Policy

_PER_SHARD = ("n_selected", "n_planned", "summary", "node")
"""What may differ between the descriptions of one evaluation's shards."""


def merge_runs(parts: Sequence[SavedRun], where: Path, *, new: bool, baseline: SavedRun | None = None) -> Path:
    """Write the merged run.

    Args:
        parts: the runs.
        where: the new run's folder.
        new: ``where`` is the results folder instead, and gets a run with a name of its own.
        baseline: what ``baseline`` means in the gates.

    Returns:
        The new run's folder.

    Raises:
        UserError: the parts do not belong together, or an item is in two of them.
        JournalError: the folder cannot be written.
    """
    described = _agree(parts)
    _refuse_overlap(parts)
    missing = _missing_shards(parts)
    try:
        folder = RunFolder.create(where, name_hint="merged") if new else _create(where)
        _write(folder, parts, described, missing, baseline)
    except OSError as error:
        raise JournalError(f"cannot write {where}: {error.strerror}", "Give another folder: --output=DIR") from error
    return folder.path


def _write(
    folder: RunFolder,
    parts: Sequence[SavedRun],
    described: dict[str, dict[str, Any]],
    missing: Mapping[str, str],
    baseline: SavedRun | None,
) -> None:
    with folder:
        for part in parts:
            copy_items(part.path, folder.path)
        with Journal.open(folder.path) as journal:
            for part in parts:
                for evaluation in part.evaluations.values():
                    for episodes in evaluation.episodes.values():
                        for episode in episodes:
                            journal.append(episode)
        told = set(missing.values()) if len(missing) == len(described) else ()
        said = told if len(told) == 1 else [f"{name}: {text}" for name, text in missing.items()]
        info = _info(parts, described) | {"missing": "; ".join(said)}
        folder.write_run(info | {"gates": []})
        whole = read_run(folder.path)
        for name, evaluation in whole.evaluations.items():
            described[name]["summary"] = evaluation.row.summary().to_dict()
        folder.write_run(info | {"gates": _decided(whole, missing, baseline)})
        write_stats(folder.path, whole.rows)


def _agree(parts: Sequence[SavedRun]) -> dict[str, dict[str, Any]]:
    """Each evaluation as the parts describe it alike, with the items of all."""
    _must_equal("checkpoint", [(part, sorted(digests_of(part.info))) for part in parts])
    together: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for part in parts for name in part.evaluations):
        having = [(part, part.evaluations[name]) for part in parts if name in part.evaluations]
        _must_equal(name, [(part, _without(e.described)) for part, e in having])
        together[name] = {
            **_without(having[0][1].described),
            "node": having[0][1].row.key,
            "n_selected": sum(e.row.n_selected for _, e in having),
            "n_planned": sum(e.row.n_planned for _, e in having),
            "gates": list(dict.fromkeys(str(gate) for _, e in having for gate in e.row.gates)),
        }
    return together


def _must_equal(what: str, values: Sequence[tuple[SavedRun, Any]]) -> None:
    first, expected = values[0]
    for part, value in values[1:]:
        if value != expected:
            raise UserError(
                f"{first.name} and {part.name} cannot be merged: {what} differs: {_first_difference(expected, value)}",
                "Only runs of the same evaluations on the same checkpoint with the same settings are one run.",
            )


def _first_difference(a: Any, b: Any, path: str = "") -> str:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted({*a, *b}):
            if a.get(key) != b.get(key):
                return _first_difference(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
    return f"{path or 'it'} is {a!r} and {b!r}"


def _refuse_overlap(parts: Sequence[SavedRun]) -> None:
    seen: dict[tuple[str, str], SavedRun] = {}
    for part in parts:
        for evaluation in part.evaluations.values():
            for item_id in evaluation.episodes:
                other = seen.setdefault((evaluation.name, item_id), part)
                if other is not part:
                    raise UserError(
                        f"{evaluation.name}[{item_id}] is in {other.name} and in {part.name}",
                        "Shards are disjoint: were these runs made with --shard=1/N, 2/N, ...?",
                    )


def _info(parts: Sequence[SavedRun], described: Mapping[str, Any]) -> dict[str, Any]:
    first = parts[0].info
    kept = {name: first[name] for name in ("schema", "git", "versions", "machine", "models") if name in first}
    given = dict(first.get("settings", {}).get("given", {}))
    given.pop("shard", None)
    ini = {name: value for name, value in first.get("settings", {}).get("ini", {}).items() if name != "shard"}
    return {
        **kept,
        "status": "finished",
        "exit_status": max(int(part.info.get("exit_status", 0)) for part in parts),
        "started_at": min(float(part.info.get("started_at", time.time())) for part in parts),
        "finished_at": max(float(part.info.get("finished_at", 0.0)) for part in parts),
        "merged_at": time.time(),
        "merged_from": [{"run": part.name, "command_line": part.info.get("command_line", [])} for part in parts],
        "command_line": ["areal-eval", "merge", *(part.name for part in parts)],
        "settings": {"given": given, "ini": ini, "yaml": first.get("settings", {}).get("yaml", {})},
        "evaluations": described,
    }


def _decided(whole: SavedRun, missing: Mapping[str, str], baseline: SavedRun | None) -> list[dict[str, Any]]:
    policy: Policy = settings_of(whole.info).get("gate-policy", "point")
    return [
        _decide(whole, e.row, gate, missing.get(e.name, ""), policy, baseline).to_dict(e.name)
        for e in whole.evaluations.values()
        for gate in e.row.gates
    ]


def _decide(whole: SavedRun, row: Row, gate: Gate, missing: str, policy: Policy, baseline: SavedRun | None) -> Verdict:
    summary, partial = row.summary(), missing or row.partial_reason()
    try:
        reference = _reference(baseline, whole, row) if gate.from_baseline and baseline and not partial else None
        return decide(gate, summary, partial_reason=partial, policy=policy, baseline=reference)
    except UserError as error:
        return undecided(gate, summary, error)


def _reference(baseline: SavedRun, whole: SavedRun, row: Row) -> Baseline:
    for found in compare_runs(baseline, whole):
        if found.name == row.name and not found.differs:
            return baseline_of(baseline.evaluations[found.baseline_name].row, row, baseline.name)
        if found.name == row.name:
            raise ConfigError(f"{baseline.name} is no baseline for {row.name}: {'; '.join(found.differs)}")
    raise ConfigError(f"{row.name} is not in the baseline {baseline.name}")


def _missing_shards(parts: Sequence[SavedRun]) -> dict[str, str]:
    """Which of an evaluation's shards are not among the parts, for a person, by its name; nothing where all are.

    Raises:
        UserError: the parts are shards of different divisions.
    """
    shards = {row.shard: part for part in parts for row in part.rows}
    sizes = {shard[1] for shard in shards if shard is not None}
    if len(sizes) > 1 or (sizes and None in shards):
        names = ", ".join(f"{part.name} ({'/'.join(map(str, shard or ('whole',)))})" for shard, part in shards.items())
        raise UserError(
            f"these are no shards of one division: {names}", "Merge the runs of one --shard=I/N, I from 1 to N."
        )
    planned: dict[str, dict[tuple[int, int], int]] = {}
    for e in (e for part in parts for e in part.evaluations.values()):
        if e.row.shard is not None:
            planned.setdefault(e.name, {})[e.row.shard] = e.row.n_planned
    divided = [(i, n) for n in sizes for i in range(1, n + 1)]
    missing = {}
    for name, counts in planned.items():
        absent = [s for s in divided if s not in counts and (s not in shards or _holds_any(s, counts))]
        if absent:
            listed, verb = ", ".join(f"{i}/{n}" for i, n in absent), "is" if len(absent) == 1 else "are"
            missing[name] = f"of the shards {listed} {verb} missing"
    return missing


def _holds_any(shard: tuple[int, int], others: Mapping[tuple[int, int], int]) -> bool:
    """Whether a shard has surely items: earlier ones have as many as later ones, or one more."""
    return any(count > 1 or (count == 1 and shard < other) for other, count in others.items())


def _without(described: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in described.items() if name not in _PER_SHARD and name != "gates"}
    copied: dict[str, Any] = json.loads(json.dumps(kept))
    copied.get("identity", {}).pop("selection", None)  # each shard has its own; the items are in items.jsonl
    return copied


def _create(path: Path) -> RunFolder:
    if path.exists():
        raise UserError(f"{path} exists already", "Give --output a folder that does not.")
    path.mkdir(parents=True)
    return RunFolder(path)
