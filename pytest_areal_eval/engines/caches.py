"""What servers compile, kept between runs, in folders that no two servers write at once.

Invariant: a folder that was claimed is this process's to its end.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

MOST = 64
"""Sessions at once; one more shares the first one's folder."""
_claimed: dict[Path, tuple[Path, int]] = {}
_lock = threading.Lock()


def claim(folder: Path) -> Path:
    """``folder``, or ``folder.2`` and so on where another session's server has it.

    Where nothing can be locked (a file system that is read-only or knows no locks) it is ``folder``.
    """
    with _lock:
        if folder not in _claimed:
            _claimed[folder] = _free(folder)
        return _claimed[folder][0]


def _free(folder: Path) -> tuple[Path, int]:
    for number in range(1, MOST + 1):
        path = folder if number == 1 else folder.with_name(f"{folder.name}.{number}")
        try:
            path.mkdir(parents=True, exist_ok=True)
            fd = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            break
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
        except OSError:
            os.close(fd)
            break
        else:
            return path, fd
    return folder, -1
