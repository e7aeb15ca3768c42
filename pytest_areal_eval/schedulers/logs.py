"""The end of an instance's log, fit to be shown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pytest_areal_eval.redact import is_secret_name

TAIL_BYTES = 256 * 1024


def tail(path: str, lines: int, secrets: Sequence[str] = ()) -> str:
    """The last lines of a file, at most 256 KiB, with the secrets blotted out."""
    try:
        with open(path, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError as error:
        return f"[the log cannot be read: {error}]"
    for secret in secrets:
        text = text.replace(secret, "***")
    return "\n".join(text.splitlines()[-lines:])


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables whose names say that they are keys or tokens."""
    return tuple(value for name, value in env.items() if value and is_secret_name(name))
