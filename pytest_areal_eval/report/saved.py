"""A run read back from its folder: the rows of its table, and every episode behind them.

Invariant: numbers come from the journal alone, by the same code as the table that pytest printed.  An item counts when
all of its episodes are there; one that lacks some, or that was given up when the engine was lost, is still owed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import GIVEN_UP, Episode
from pytest_areal_eval.errors import ConfigError, JournalError, UserError
from pytest_areal_eval.journal import Problem, RunFolder, latest_episodes
from pytest_areal_eval.journal.folder import LATEST, RUN_NAME
from pytest_areal_eval.journal.items import SavedItem, read_items
from pytest_areal_eval.options.declarations import RESULTS_DIR
from pytest_areal_eval.report.examples import example_of
from pytest_areal_eval.report.reasons import reason_of
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.report.spans import spans_of
from pytest_areal_eval.report.text import items_are
from pytest_areal_eval.stats import EpisodeResult, Gate, ItemResult, parse_gate


@dataclass(frozen=True)
class SavedEvaluation:
    """One evaluation of a saved run.

    Attributes:
        row: its row of the table.
        described: what ``run.json`` says of it: data, sampling, workflow, reward.
        episodes: by item id, those of the items that count, ordered by index.
        items: hash and columns of the records, where the run kept them.
        owed: items with some episodes, but not all.
    """

    row: Row
    described: Mapping[str, Any]
    episodes: Mapping[str, tuple[Episode, ...]]
    items: Mapping[str, SavedItem]
    owed: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The evaluation's name."""
        return self.row.name

    @property
    def setup(self) -> str:
        """Its data, episodes, sampling and grader in one line."""
        data, sampling = self.described.get("dataset", {}), self.described.get("sampling", {})
        source = str(self.described.get("identity", {}).get("source", ""))
        what = f"{data['name']} ({str(data.get('content_hash'))[:8]}), " if data.get("name") else ""
        how = "as recorded" if source.startswith("replay") else sampling_text(sampling) if sampling else ""
        scored_by = str(self.described.get("reward_fn") or self.described.get("workflow") or "").rpartition(".")[2]
        counts = f"{what}{self.row.n_selected} of {self.row.n_total} items x {self.row.n_samples}"
        return "; ".join(filter(None, (counts, how, scored_by and f"scored by {scored_by}")))


def sampling_text(sampling: Mapping[str, Any]) -> str:
    """How answers are drawn, in a few words."""
    limit = f", at most {sampling['max_new_tokens']} new tokens" if "max_new_tokens" in sampling else ""
    if sampling.get("greedy"):
        return f"greedy{limit}"
    return f"temperature {sampling.get('temperature', 1.0):g}, top_p {sampling.get('top_p', 1.0):g}{limit}"


@dataclass(frozen=True)
class SavedRun:
    """A run's folder, read.

    Attributes:
        path: the folder.
        info: ``run.json``.
        evaluations: by name, in the order of ``run.json``.
        problems: lines of the journal that did not count.
    """

    path: Path
    info: Mapping[str, Any]
    evaluations: Mapping[str, SavedEvaluation]
    problems: Sequence[Problem] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def gates(self) -> list[Mapping[str, Any]]:
        """The decided gates, in the order of the evaluations."""
        order = {name: place for place, name in enumerate(self.evaluations)}
        return sorted(self.info.get("gates", []), key=lambda gate: order.get(gate["evaluation"], len(order)))

    @property
    def gaps(self) -> list[str]:
        """Why its numbers are not a whole run's; nothing where they are."""
        found = [
            f"{e.name}: {items_are(len(e.owed))} owed, and in no number: some of {e.row.n_samples} episodes are missing"
            for e in self.evaluations.values()
            if e.owed
        ]
        if self.info.get("missing"):
            found.append(f"not the whole run: {self.info['missing']}")
        if self.info.get("status") == "started":
            found.append("the run has not finished, or was killed; these are the items that are in its journal")
        return found

    @property
    def rows(self) -> list[Row]:
        """The rows that have anything to show."""
        return [e.row for e in self.evaluations.values() if e.row.results]

    @property
    def models(self) -> list[str]:
        """What was evaluated: the checkpoints, or the file of recorded completions."""
        return models_of(self.info)


def settings_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a ``run.json``, by their precedence."""
    said = info.get("settings", {})
    return {**said.get("yaml", {}), **said.get("ini", {}), **said.get("given", {})}


def models_of(info: Mapping[str, Any]) -> list[str]:
    """What a ``run.json`` says that was evaluated: the checkpoints, or the file of recorded completions."""
    settings = settings_of(info)
    replay = settings.get("replay")
    return list(info.get("models", {})) or ([str(replay)] if replay else list(settings.get("model", [])))


def digests_of(info: Mapping[str, Any]) -> list[str]:
    """The fingerprints of the checkpoints that a ``run.json`` knows."""
    digests = ((model.get("fingerprint") or {}).get("digest") for model in info.get("models", {}).values())
    return [str(digest) for digest in digests if digest]


def find_run(text: str, results_dir: Path = Path(RESULTS_DIR)) -> Path:
    """The folder that a person means: a path, or the part of a name that one run has in ``results_dir``.

    Raises:
        UserError: there is no such run, or several.
    """
    for path in (Path(text), results_dir / text):
        if (path / RUN_NAME).is_file():
            return path.resolve()
    runs = list_runs(results_dir)
    found = [path for path in runs if text in path.name] if text else []
    if len(found) == 1:
        return found[0].resolve()
    what = (
        f"several runs match {text!r}" if found else f"there is no run {text!r}, neither as a path nor in {results_dir}"
    )
    names = ", ".join(path.name for path in (found or runs)[-5:])
    raise UserError(what, f"There are: {names}" if names else "Runs are made by: pytest evals/ --model=CHECKPOINT")


def list_runs(results_dir: Path) -> list[Path]:
    """The runs in a folder, oldest first."""
    runs = [p.parent for p in results_dir.glob(f"*/{RUN_NAME}") if p.parent.name != LATEST]
    return sorted(runs, key=lambda path: path.name)


def read_run(path: Path) -> SavedRun:
    """Read a run; all of its episodes are in memory afterwards.

    Raises:
        JournalError: it is no run's folder, or cannot be read.
    """
    info = RunFolder(path).read_run()
    problems: list[Problem] = []
    grouped: dict[str, dict[str, list[Episode]]] = defaultdict(lambda: defaultdict(list))
    for (evaluation, item_id, _), episode in latest_episodes(path, problems).items():
        grouped[evaluation][item_id].append(episode)
    described = info.get("evaluations", {})
    items = _by_evaluation(read_items(path))
    return SavedRun(
        path=path,
        info=info,
        evaluations={
            name: _evaluation(name, described.get(name, {}), grouped.get(name, {}), items.get(name, {}), info)
            for name in dict.fromkeys([*described, *grouped])
        },
        problems=problems,
    )


def _evaluation(
    name: str,
    described: Mapping[str, Any],
    episodes: Mapping[str, list[Episode]],
    items: Mapping[str, SavedItem],
    info: Mapping[str, Any],
) -> SavedEvaluation:
    drawn = max((e.index + 1 for group in episodes.values() for e in group), default=1)
    n_samples = max(int(described.get("n_samples", drawn)), drawn)
    whole = {
        item_id: tuple(sorted(group, key=lambda e: e.index))
        for item_id, group in episodes.items()
        if len(group) == n_samples and not any(e.status in GIVEN_UP for e in group)
    }
    n_selected = max(int(described.get("n_selected", 0)), len(whole))
    key = str(described.get("node", name))
    row = Row(
        key=key,
        name=name,
        evaluation=str(described.get("evaluation", name)),
        model=str(described.get("model_name", "")),
        file=key.partition("::")[0],
        gates=_gates(name, described, info),
        n_samples=n_samples,
        n_selected=n_selected,
        n_planned=int(described.get("n_planned", n_selected)),
        n_total=max(int(described.get("n_total", 0)), n_selected),
        pass_mark=float(described.get("pass_mark", 1.0)),
        shard=_shard(info),
        results={item_id: _result(item_id, group) for item_id, group in whole.items()},
        spans=spans_of(e for group in whole.values() for e in group),
    )
    for item_id, group in whole.items():
        if (row.results[item_id].reward or 0.0) < row.pass_mark:
            row.keep(item_id, example_of(item_id, group))
        row.explain(item_id, reason_of(group))
    return SavedEvaluation(row, described, whole, items, [item_id for item_id in episodes if item_id not in whole])


def _result(item_id: str, episodes: Sequence[Episode]) -> ItemResult:
    try:
        return ItemResult(item_id, tuple(EpisodeResult.from_episode(e) for e in episodes))
    except ValueError as error:
        raise JournalError(f"the journal contradicts itself: {error}") from error


def _gates(name: str, described: Mapping[str, Any], info: Mapping[str, Any]) -> list[Gate]:
    decided = [gate["gate"] for gate in info.get("gates", []) if gate["evaluation"] == name]
    try:
        return [parse_gate(text) for text in dict.fromkeys([*described.get("gates", []), *decided])]
    except ConfigError as error:
        raise JournalError(f"{RUN_NAME} is damaged: {name}: {error.args[0]}") from error


def _shard(info: Mapping[str, Any]) -> tuple[int, int] | None:
    shard = settings_of(info).get("shard")
    return (int(shard[0]), int(shard[1])) if shard else None


def _by_evaluation(items: Mapping[tuple[str, str], SavedItem]) -> dict[str, dict[str, SavedItem]]:
    grouped: dict[str, dict[str, SavedItem]] = defaultdict(dict)
    for (evaluation, item_id), item in items.items():
        grouped[evaluation][item_id] = item
    return grouped
