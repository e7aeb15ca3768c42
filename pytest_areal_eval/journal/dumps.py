"""Rollouts in AReaL's layout: ``{fileroot}/logs/{user}/{experiment}/{trial}/eval-rollout/{version}/{task_id}.jsonl``.

Invariant: a file holds one item's rollout, a line for each episode, and is written once: where AReaL counts its tasks
from 0 in every run and appends to what earlier ones left, numbers here go on behind what is there.
"""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import Episode, Rollout
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal.record import encode_line

SCOPE, VERSION = "eval-rollout", 0
"""A checkpoint under evaluation has one version of its weights."""


def dump_folder(fileroot: str, experiment: str, trial: str) -> Path:
    """Where AReaL puts the rollouts of an evaluation."""
    return Path(fileroot).expanduser() / "logs" / getpass.getuser() / experiment / trial / SCOPE / str(VERSION)


class ArealDump:
    """Writes rollouts into a folder, which other processes may do too.

    Args:
        folder: see :func:`dump_folder`; made if it is not there.
        run: the run's name, which each line bears.

    Raises:
        JournalError: the folder cannot be made.
    """

    def __init__(self, folder: Path, run: str = "") -> None:
        self._folder = folder
        self._run = run
        try:
            folder.mkdir(parents=True, exist_ok=True)
            there = [int(file.stem) for file in folder.glob("*.jsonl") if file.stem.isdecimal()]
        except OSError as error:
            raise _refusal(folder, error) from error
        self._next = max(there, default=-1) + 1

    def write(self, rollout: Rollout) -> Path:
        """Write an item's rollout; returns its file.

        Raises:
            JournalError: it cannot be written.
        """
        while True:
            number, self._next = self._next, self._next + 1
            path = self._folder / f"{number}.jsonl"
            try:
                with path.open("xb") as file:
                    file.writelines(encode_line(self._line(number, episode)) for episode in rollout.episodes)
                return path
            except FileExistsError:  # another process's
                continue
            except OSError as error:
                raise _refusal(path, error) from error

    def _line(self, number: int, episode: Episode) -> dict[str, Any]:
        """AReaL's fields, then what a reader needs to find the item again."""
        return {
            "task_id": number,
            "sample_idx": episode.index,
            "seqlen": episode.input_tokens + episode.output_tokens,
            "prompt_len": episode.input_tokens,
            "head_version": VERSION,
            "tail_version": VERSION,
            "reward": episode.reward,
            "prompt": episode.prompt,
            "completion": episode.completion,
            "item_id": episode.item_id,
            "evaluation": episode.evaluation,
            "status": episode.status.value,
            "stop_reason": episode.stop_reason,
            "run": self._run,
        }


def _refusal(path: Path, error: OSError) -> JournalError:
    return JournalError(
        f"rollout.dump_to_file: cannot write {path}: {error.strerror}",
        "Give another cluster.fileroot, or --set rollout.dump_to_file=false.",
    )
