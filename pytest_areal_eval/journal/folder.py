"""A run's folder: its name, its lock, and ``run.json`` beside the journal.

Invariant: a folder belongs to one run; ``run.json`` is always whole, and no secret is ever in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.journal.lock import LOCK_NAME, RunLock
from pytest_areal_eval.journal.record import SCHEMA
from pytest_areal_eval.journal.shape import fault
from pytest_areal_eval.redact import redact

RUN_NAME = "run.json"
LATEST = "latest"


class RunFolder:
    """One run's folder, ``eval-results/2026-11-29T17-30-05_tiny-math_ab12``.

    Made by hand it is for reading; :meth:`create` and :meth:`open` also hold the run's lock until :meth:`close`.
    """

    def __init__(self, path: Path, lock: RunLock | None = None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, results_dir: Path, *, name_hint: str) -> RunFolder:
        """Make a new folder under ``results_dir`` (made too if missing), lock it, and point ``latest`` at it.

        Args:
            results_dir: where runs are kept.
            name_hint: what the run is about, such as the model's name; shortened and cleaned for the folder's name.

        Raises:
            JournalError: ``results_dir`` cannot be written or is full.
        """
        try:
            results_dir.mkdir(parents=True, exist_ok=True)
            path = _make_unique(results_dir, name_hint)
            try:
                lock = RunLock.acquire(path)
            except OSError:
                _remove(path)
                raise
        except OSError as error:
            raise JournalError(
                f"results cannot be written to {results_dir}: {error.strerror}",
                "Give a folder that can be written: --results-dir=PATH",
            ) from error
        _point_latest(results_dir, path.name)
        return cls(path, lock)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Lock an existing run's folder, to go on with it.

        Raises:
            JournalError: it is no run's folder, cannot be written, or another process holds it.
        """
        if not (path / RUN_NAME).is_file():
            raise JournalError(
                f"there is no run at {path}: {RUN_NAME} is missing", "Give a folder under eval-results/."
            )
        try:
            return cls(path, RunLock.acquire(path))
        except OSError as error:
            raise JournalError(
                f"the run {path} cannot be written: {error.strerror}", "Copy it to a folder of your own and use that."
            ) from error

    def write_run(self, info: Mapping[str, Any]) -> None:
        """Write ``run.json`` whole or not at all; what looks like a secret is masked.

        Args:
            info: whatever describes the run; dataclasses, enums and paths are made plain.

        Raises:
            JournalError: it cannot be written.
        """
        text = json.dumps(redact(info), indent=2, sort_keys=True, allow_nan=False) + "\n"
        try:
            _replace(self.path / RUN_NAME, text.encode())
        except OSError as error:
            raise JournalError(
                f"cannot write {self.path / RUN_NAME}: {error.strerror}",
                "Free some space, or give another folder: --results-dir=PATH",
            ) from error

    def read_run(self) -> dict[str, Any]:
        """What ``run.json`` says.

        Raises:
            JournalError: it is missing, damaged, or of a newer version.
        """
        path = self.path / RUN_NAME
        try:
            info = json.loads(path.read_bytes())
        except OSError as error:
            raise JournalError(
                f"cannot read {path}: {error.strerror}", "Give a run's folder, not its parent."
            ) from error
        except ValueError as error:
            raise JournalError(f"{path} is damaged: {error}") from error
        if not isinstance(info, dict):
            raise JournalError(f"{path} is damaged: it holds no JSON object")
        version = info.get("schema", SCHEMA)
        if isinstance(version, int) and version > SCHEMA:
            raise JournalError(
                f"{path} was written in schema {version}; this version reads up to {SCHEMA}",
                "pip install --upgrade pytest-areal-eval",
            )
        wrong = fault(info)
        if wrong:
            raise JournalError(f"{path} is damaged: {wrong}")
        return info

    def close(self) -> None:
        """Release the lock.  A second call does nothing."""
        if self._lock:
            self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_unique(results_dir: Path, name_hint: str) -> Path:
    hint = re.sub(r"[^A-Za-z0-9.]+", "-", name_hint).strip("-.")[:40] or "run"
    while True:
        path = results_dir / f"{_now()}_{hint}_{secrets.token_hex(2)}"
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


def _now() -> str:
    return datetime.now().strftime("%Y-%m-%dT%H-%M-%S")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        (path / LOCK_NAME).unlink(missing_ok=True)
        path.rmdir()


def _point_latest(results_dir: Path, name: str) -> None:
    """A convenience that some file systems do not have, and that must not stop a run."""
    temporary = results_dir / f".{name}.latest"
    with contextlib.suppress(OSError):
        temporary.symlink_to(name)
        try:
            temporary.replace(results_dir / LATEST)
        except OSError:
            temporary.unlink()


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
