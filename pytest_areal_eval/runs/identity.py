"""What decides an evaluation's results, and what of it differs between two runs.

Invariant: equal identities mean that an episode of the one run may stand for the same episode of the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_areal_eval.options.settings import Settings
from pytest_areal_eval.report.text import items_are

if TYPE_CHECKING:
    from pytest_areal_eval.collection.groups import Group

Purpose = Literal["resume", "rescore", "from-run"]

COMPARED: Mapping[Purpose, tuple[str, ...]] = {
    "resume": ("n_samples", "sampling", "template", "workflow", "reward_fn", "identity"),
    "rescore": ("n_samples", "sampling", "template", "identity.seed", "identity.prompt"),
    "from-run": ("n_samples",),
}
"""What must agree for an earlier run's episodes, answers or scores to be used; beside the items and the checkpoint."""

GRADING = ("reward_fn", "identity.reward_fn", "identity.answer", "identity.workflow", "workflow")
NOT_SHOWN = "identity.selection"  # the items themselves are compared, by name


def identity_of(group: Group, settings: Settings) -> dict[str, Any]:
    """What ``run.json`` keeps so that another run can tell whether an evaluation is still the same.

    Functions and classes are kept as hashes of their code; items have a file of their own.
    """
    from pytest_areal_eval.journal import item_hash

    spec, plan = group.plan.spec, group.plan
    return {
        "selection": ids_digest(plan.ids[index] for index in selected_indices(group)),
        "seed": int(settings.get("seed", 0)),
        "source": _source(settings),
        "tokenizer": settings.get("tokenizer"),
        "prompt": _code(spec.prompt),
        "answer": _code(spec.answer),
        "workflow": _code(plan.function if plan.is_async else spec.workflow),
        "workflow_kwargs": item_hash(dict(spec.workflow_kwargs)),
        "reward_fn": _code(spec.reward_fn),
    }


def selected_indices(group: Group) -> list[int]:
    """The rows behind a group's selected tests."""
    from pytest_areal_eval.collection.groups import membership

    return [found[1].index for found in map(membership, group.items) if found is not None]


def ids_digest(ids: Iterable[str]) -> str:
    """A digest over item ids, in whatever order."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]


def differences(saved: Mapping[str, Any], today: Mapping[str, Any], purpose: Purpose) -> list[tuple[str, str]]:
    """What of an evaluation's description is not as it was: names with a sentence each.

    Args:
        saved: the earlier run's, from ``run.json``.
        today: this session's.
        purpose: what the earlier run is wanted for.
    """
    from pytest_areal_eval.redact import redact

    was, now = _flat(saved), _flat(json.loads(json.dumps(redact(today))))
    names = [
        name
        for name in dict.fromkeys([*was, *now])
        if name != NOT_SHOWN and any(name == c or name.startswith(f"{c}.") for c in COMPARED[purpose])
    ]
    return [(name, _said(name, was.get(name), now.get(name))) for name in names if was.get(name) != now.get(name)]


def _said(name: str, was: Any, now: Any) -> str:
    own = name.partition(".")[2]
    if own in ("prompt", "answer", "workflow", "reward_fn") and was is not None and now is not None:
        return f"the code of its {own} changed"
    return f"{name.removeprefix('identity.')} was {json.dumps(was)}, is {json.dumps(now)}"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {name: leaf for key, inner in value.items() for name, leaf in _flat(inner, _joined(prefix, key)).items()}


def _joined(prefix: str, key: object) -> str:
    return f"{prefix}.{key}" if prefix else str(key)


def _code(thing: Any) -> str | None:
    """A column's name as it is, code by its hash."""
    from pytest_areal_eval.journal import code_hash
    from pytest_areal_eval.rewards.importing import import_from_string

    if isinstance(thing, str) and not any(mark in thing for mark in ".:"):
        return thing
    found = import_from_string(thing) if isinstance(thing, str) else thing
    return None if found is None else code_hash(found)


def _source(settings: Settings) -> str:
    """Where answers come from: a checkpoint, which has a fingerprint of its own, or something that has none."""
    replay = settings.get("replay")
    if replay is not None:
        return f"replay {hashlib.sha256(Path(replay).read_bytes()).hexdigest()[:16]}"
    if settings.get("base-url"):
        return f"server of {', '.join(settings.get('model', [])) or 'its own model'}"
    return "checkpoint" if settings.get("model") else "a controller of the suite's own"


def item_differences(
    saved: Mapping[str, str], today: Mapping[str, Mapping[str, Any]], *, contents: bool
) -> Iterator[str]:
    """What of an evaluation's items is not as it was.

    Args:
        saved: the earlier run's content hashes by item id.
        today: this session's records by item id.
        contents: whether an item's content must be the same too, and not its id alone.
    """
    from pytest_areal_eval.journal import item_hash

    added, gone = [i for i in today if i not in saved], [i for i in saved if i not in today]
    changed = [i for i, r in today.items() if contents and i in saved and item_hash(r) != saved[i]]
    for ids, what in ((changed, "of another content"), (added, "not in the run"), (gone, "not selected")):
        if ids:
            shown = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
            yield f"{items_are(len(ids))} {what}: {shown}"
