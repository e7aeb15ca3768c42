"""What an earlier run left for this one: ``--resume``, ``--rescore`` and ``--from-run``.

Invariant: nothing is taken from a run that was made otherwise; what differs is shown and the session is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import GIVEN_UP, Episode, EpisodeStatus
from pytest_areal_eval.errors import ConfigError, JournalError
from pytest_areal_eval.journal import Answer, RunFolder, episode_from_dict, finished_and_owed, latest_answers
from pytest_areal_eval.journal.items import read_items
from pytest_areal_eval.journal.record import EpisodeKey
from pytest_areal_eval.options.declarations import NEWEST
from pytest_areal_eval.options.settings import Settings
from pytest_areal_eval.report.saved import find_run, list_runs, settings_of
from pytest_areal_eval.runs.identity import GRADING, NOT_SHOWN, Purpose, differences, item_differences

PURPOSES: tuple[Purpose, ...] = ("resume", "rescore", "from-run")
OF_TODAY = frozenset({"results-dir", "gate", "gate-policy", "gate-partial", "baseline", "order", "track", *PURPOSES})
"""Options that ``--rescore`` and ``--from-run`` do not take over from the run."""


@dataclass(frozen=True)
class Earlier:
    """What an earlier run has of an item.

    Attributes:
        finished: episodes by index.
        answers: of the episodes that are not finished, what the engine answered.
    """

    finished: Mapping[int, Episode] = field(default_factory=dict)
    answers: Mapping[int, Sequence[Answer]] = field(default_factory=dict)


class History:
    """An earlier run, read for a purpose.

    Args:
        purpose: ``resume`` takes finished episodes and the answers of unfinished ones, ``rescore`` the answers of all,
            ``from-run`` the episodes alone.
        path: the run's folder.
        journal: what of it is read: the whole folder, or one file where others are being written.

    Raises:
        JournalError: it cannot be read.
    """

    def __init__(self, purpose: Purpose, path: Path, journal: Path | None = None) -> None:
        self.purpose = purpose
        self.path = path
        self.info = RunFolder(path).read_run()
        self._records, self._answers = finished_and_owed(journal or path, GIVEN_UP)
        if purpose == "rescore":
            self._answers = latest_answers(path)
            self._records = {key: r for key, r in self._records.items() if not self._can_grade(key, r)}

    def of(self, evaluation: str, item_id: str, n_samples: int) -> Earlier:
        """What there is of an item.

        Raises:
            JournalError: a line of the journal is damaged.
        """
        keys = {index: (evaluation, item_id, index) for index in range(n_samples)}
        finished = {i: episode_from_dict(self._records[key]) for i, key in keys.items() if key in self._records}
        answers = {i: self._answers[key] for i, key in keys.items() if i not in finished and key in self._answers}
        return Earlier(finished, answers)

    def owes(self, evaluation: str, item_id: str, n_samples: int) -> bool:
        """Whether any episode of an item has to run."""
        return any((evaluation, item_id, index) not in self._records for index in range(n_samples))

    @property
    def depends_on_checkpoint(self) -> bool:
        """Whether another checkpoint would make what is taken over wrong."""
        return self.purpose == "resume" or (self.purpose == "rescore" and self.has_token_ids)

    @property
    def has_token_ids(self) -> bool:
        """Whether its answers are token ids, which need the checkpoint's tokenizer."""
        first = next((answer for answers in self._answers.values() for answer in answers), None)
        return first is not None and bool(first.response["output_tokens"])

    def count(self, evaluations: Mapping[str, tuple[Sequence[str], int]]) -> tuple[int, int, int]:
        """Episodes in all, finished ones, and those for which nothing is stored at all.

        Args:
            evaluations: item ids and number of episodes an item, by evaluation.
        """
        wanted = [(e, i, n) for e, (ids, samples) in evaluations.items() for i in ids for n in range(samples)]
        nothing = sum(key not in self._records and not self._answers.get(key) for key in wanted)
        return len(wanted), sum(key in self._records for key in wanted), nothing

    def check(
        self,
        today: Mapping[str, Mapping[str, Any]],
        records: Mapping[str, Mapping[str, Mapping[str, Any]]],
        fingerprints: Mapping[str, str],
    ) -> None:
        """Refuse a run that was made otherwise.

        Args:
            today: this session's description of each evaluation.
            records: its records by evaluation and item id.
            fingerprints: its checkpoints' digests, by ``--model``.

        Raises:
            ConfigError: what differs, evaluation by evaluation.
        """
        found: list[tuple[str, str]] = []
        saved = self.info.get("evaluations", {})
        for name in dict.fromkeys([*today, *saved]):
            if name not in saved or name not in today:
                found.append((name, "is not in the run" if name not in saved else "is not selected"))
                continue
            found += [(key, f"{name}: {said}") for key, said in differences(saved[name], today[name], self.purpose)]
            found += [("items", f"{name}: {said}") for said in self._items(name, saved[name], today[name], records)]
        found += self._checkpoints(fingerprints)
        if found:
            raise self._refusal(found)

    def _items(
        self,
        name: str,
        saved: Mapping[str, Any],
        today: Mapping[str, Any],
        records: Mapping[str, Mapping[str, Mapping[str, Any]]],
    ) -> list[str]:
        selection = NOT_SHOWN.partition(".")[2]
        same_data = saved.get("dataset", {}).get("content_hash") == today["dataset"]["content_hash"]
        if same_data and saved.get("identity", {}).get(selection) == today["identity"][selection]:
            return []
        items = {
            item_id: item.hash for (evaluation, item_id), item in read_items(self.path).items() if evaluation == name
        }
        return list(item_differences(items, records[name], contents=self.purpose != "rescore"))

    def _checkpoints(self, fingerprints: Mapping[str, str]) -> list[tuple[str, str]]:
        models = self.info.get("models", {})
        digests = {name: (model.get("fingerprint") or {}).get("digest") for name, model in models.items()}
        saved = {name: str(digest) for name, digest in digests.items() if digest}
        if len(saved) == len(fingerprints) == 1:  # the same weights may have moved
            saved = dict.fromkeys(fingerprints, next(iter(saved.values())))
        found = []
        planned = settings_of(self.info).get("model", [])
        for name, digest in fingerprints.items() if saved else ():
            if name not in saved and name in planned:
                continue  # of several, its turn had not come
            if name not in saved:
                found.append(("checkpoint", f"--model={name}: the run evaluated {', '.join(saved)}"))
            elif saved[name] != digest:
                was = f"fingerprint {saved[name][:8]} was evaluated, {digest[:8]} is there now"
                found.append(("checkpoint", f"--model={name}: the checkpoint's files are others: {was}"))
        return found

    def _refusal(self, found: Sequence[tuple[str, str]]) -> ConfigError:
        lines = [f"  {said}" for _, said in found[:20]] + (
            [f"  … and {len(found) - 20} more"] if len(found) > 20 else []
        )
        hint = "Change it back, or start a new run: leave --resume out."
        if self.purpose == "resume" and all(key in GRADING for key, _ in found):
            hint += f"\nTo grade the stored answers anew instead: --rescore={self.path.name}"
        if self.purpose != "resume":
            hint = "Select the same items, with the settings that the run had."
        return ConfigError("\n".join([f"--{self.purpose}: {self.path.name} was made otherwise:", *lines]), hint)

    def _can_grade(self, key: EpisodeKey, record: Mapping[str, Any]) -> bool:
        """Whether all that an episode asked was answered; one that ended before stays as it was.

        Raises:
            JournalError: it was graded, and yet its answers are not there.
        """
        requests = int(record.get("requests", 0))
        answered = sum(answer.request <= requests for answer in self._answers.get(key, ()))
        status = EpisodeStatus(record["status"])
        if answered == requests and status is not EpisodeStatus.PROMPT_TOO_LONG:
            return True
        if status.kind != "error":
            raise JournalError(
                f"{self.path.name} does not hold the answers of item {key[1]!r}; they cannot be graded anew"
            )
        return False


def wanted(settings: Settings) -> tuple[Purpose, str] | None:
    """Which earlier run a session asks for, if any."""
    return next(((p, str(settings.given[p])) for p in PURPOSES if p in settings.given), None)


def find(purpose: Purpose, text: str, results_dir: Path, evaluations: Sequence[str]) -> Path:
    """The run that is meant; ``newest`` is the newest of the same evaluations that has answers.

    Raises:
        UserError: there is none, or it was itself made from another run.
    """
    path = _newest(results_dir, set(evaluations)) if text == NEWEST else find_run(text, results_dir)
    if path is None:
        raise ConfigError(
            f"--{purpose}: no run in {results_dir} is one of {', '.join(evaluations)}",
            "Give the run's folder, or start a new run: leave it out.",
        )
    source = RunFolder(path).read_run().get("rescored_from")
    if purpose == "resume" and source:
        raise ConfigError(
            f"--resume: {path.name} was graded from {source}", f"Grade that one again: --rescore={source}"
        )
    return path


def _newest(results_dir: Path, evaluations: set[str]) -> Path | None:
    found: list[tuple[bool, float, Path]] = []
    for path in list_runs(results_dir):
        try:
            info = RunFolder(path).read_run()
        except JournalError:
            continue  # a damaged one is nobody's newest
        if set(info.get("evaluations", {})) == evaluations and not info.get("rescored_from"):
            # One that was refused, or whose engine did not start, has nothing to go on with.
            answered = any(file.stat().st_size for file in path.glob("episodes*.jsonl"))
            found.append((answered, float(info.get("started_at", 0.0)), path))
    return max(found)[-1] if found else None


def with_settings_of(path: Path, settings: Settings) -> Settings:
    """The settings with the run's own where today's command line says nothing."""
    saved = RunFolder(path).read_run().get("settings", {}).get("given", {})
    taken = {name: value for name, value in saved.items() if name not in OF_TODAY}
    if "shard" in taken:
        taken["shard"] = tuple(taken["shard"])
    return dataclasses.replace(settings, given={**taken, **settings.given})
