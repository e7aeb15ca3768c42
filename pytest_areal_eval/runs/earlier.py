"""At a session's start: find the run that it goes back to, hold it where it goes on, refuse what cannot be reused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.collection.resolution import samples_of
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.journal import RunFolder, journal_path, merge_journals
from pytest_areal_eval.runs.history import History, find, wanted
from pytest_areal_eval.runs.identity import Purpose, selected_indices

if TYPE_CHECKING:
    from pytest_areal_eval.runs.run import Run


def look_back(run: Run) -> tuple[History, RunFolder | None] | None:
    """The run that the options name, checked, and its held folder where it is resumed; None if they name none.

    Raises:
        ConfigError: it cannot be used for this session; the message says why.
        JournalError: it cannot be read, or another process holds it.
    """
    asked = wanted(run.evaluations.settings)
    if asked is None:
        return None
    names = [group.name for group in run.evaluations.groups.values()]
    if run.worker is not None:
        history = _read(asked[0], run.worker.ask_for_earlier(names), held=asked[0] == "resume")
        _check(run, history)
        return history, None
    history, held = take(run, names)
    try:
        _check(run, history)
    except BaseException:
        if held is not None:
            held.close()
        raise
    return history, held


def take(run: Run, evaluations: Sequence[str]) -> tuple[History, RunFolder | None]:
    """Find the run that the options name and read it; one that goes on is held, with its journal in one file.

    Args:
        run: the session's.
        evaluations: names of those that are selected.

    Raises:
        ConfigError: there is no such run.
        JournalError: it cannot be read, or another process holds it.
    """
    asked = wanted(run.evaluations.settings)
    assert asked is not None
    purpose, text = asked
    path = find(purpose, text, run.results_dir, evaluations)
    goes_on = purpose == "resume" and not run.config.option.collectonly
    held = RunFolder.open(path) if goes_on else None
    try:
        if held is not None:
            merge_journals(path)
        return _read(purpose, path, held=goes_on), held
    except BaseException:
        if held is not None:
            held.close()
        raise


def _read(purpose: Purpose, path: Path, *, held: bool) -> History:
    """A run's history; of one that goes on the main file alone, for workers write to files beside it."""
    return History(purpose, path, journal_path(path) if held else None)


def _check(run: Run, history: History) -> None:
    history.check(run.describe_evaluations(), _records(run), _fingerprints(run, history))
    _refuse_gaps(run, history)


def description(run: Run, history: History) -> str:
    """What is taken over, for the header."""
    total, finished, _ = history.count(_wanted_items(run))
    what = {"resume": "resumes", "rescore": "grades anew", "from-run": "decides on"}[history.purpose]
    kept = f"{finished} of {total} episodes are there" if history.purpose == "resume" else f"{total} episodes"
    return f"{what} {history.path.name}: {kept}"


def _refuse_gaps(run: Run, history: History) -> None:
    total, finished, nothing = history.count(_wanted_items(run))
    missing = {"resume": 0, "rescore": nothing, "from-run": total - finished}[history.purpose]
    if missing:
        raise ConfigError(
            f"--{history.purpose}: {history.path.name} lacks {missing} of {total} episodes",
            f"Finish it first, with the command that began it and --resume={history.path.name}",
        )


def _wanted_items(run: Run) -> dict[str, tuple[list[str], int]]:
    settings = run.evaluations.settings
    return {
        group.name: ([group.plan.ids[index] for index in selected_indices(group)], samples_of(group, settings))
        for group in run.evaluations.groups.values()
    }


def _records(run: Run) -> dict[str, dict[str, Mapping[str, Any]]]:
    return {
        group.name: {group.plan.ids[index]: group.plan.data.records[index] for index in selected_indices(group)}
        for group in run.evaluations.groups.values()
    }


def _fingerprints(run: Run, history: History) -> dict[str, str]:
    """The checkpoints' digests today; none where nothing that depends on them is taken over."""
    from pytest_areal_eval.backends.choice import checkpoint_of
    from pytest_areal_eval.journal import checkpoint_fingerprint

    settings = run.evaluations.settings
    if settings.get("replay") is not None or not history.depends_on_checkpoint:
        return {}
    found = {model: checkpoint_of(settings, model) for model in settings.get("model", [])}
    return {model: checkpoint_fingerprint(c.path).digest for model, c in found.items() if c is not None}
