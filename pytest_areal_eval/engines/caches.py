"""What servers compile, kept between runs, in folders that no two servers write at once.

Invariant: a folder that was claimed is this process's to its end.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from pytest_areal_eval.schedulers.locks import Lock, try_lock

MOST = 64
"""Sessions at once; one more shares the first one's folder."""
_claimed: dict[Path, tuple[Path, Lock | None]] = {}
_claiming = threading.Lock()


def claim(folder: Path) -> Path:
    """``folder``, or ``folder.2`` and so on where another session's server has it.

    Where nothing can be locked (a file system that is read-only or knows no locks) it is ``folder``.
    """
    with _claiming:
        if folder not in _claimed:
            _claimed[folder] = _free(folder)
        return _claimed[folder][0]


def _free(folder: Path) -> tuple[Path, Lock | None]:
    for number in range(1, MOST + 1):
        path = folder if number == 1 else folder.with_name(f"{folder.name}.{number}")
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = try_lock(path, ".lock", f"process {os.getpid()}")
        except OSError:
            break
        if lock is not None:
            return path, lock
    return folder, None
