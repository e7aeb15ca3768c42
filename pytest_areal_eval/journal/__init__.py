"""Episodes on disk and the run's identity: what a run can be resumed, scored again and compared from.

A run is a folder: ``run.json`` says what was run, ``episodes.jsonl`` holds one line for each answer of the engine,
written before it is graded, and one for each finished episode, written before anyone hears of it.
"""

from __future__ import annotations

from pytest_areal_eval.journal.answers import Answer, request_key, response_of, response_to_dict
from pytest_areal_eval.journal.code import code_hash
from pytest_areal_eval.journal.fingerprint import Fingerprint, checkpoint_fingerprint
from pytest_areal_eval.journal.folder import RunFolder
from pytest_areal_eval.journal.identity import dataset_identity, item_hash, prompt_hash
from pytest_areal_eval.journal.provenance import GitState, command_line, git_state, machine, versions
from pytest_areal_eval.journal.reader import Problem, finished_and_owed, latest_answers, latest_episodes, read_episodes
from pytest_areal_eval.journal.record import SCHEMA, EpisodeKey, episode_from_dict, episode_to_dict
from pytest_areal_eval.journal.writer import Journal, journal_path, merge_journals

__all__ = [
    "SCHEMA",
    "Answer",
    "EpisodeKey",
    "Fingerprint",
    "GitState",
    "Journal",
    "Problem",
    "RunFolder",
    "checkpoint_fingerprint",
    "code_hash",
    "command_line",
    "dataset_identity",
    "episode_from_dict",
    "episode_to_dict",
    "finished_and_owed",
    "git_state",
    "item_hash",
    "journal_path",
    "latest_answers",
    "latest_episodes",
    "machine",
    "merge_journals",
    "prompt_hash",
    "read_episodes",
    "request_key",
    "response_of",
    "response_to_dict",
    "versions",
]
