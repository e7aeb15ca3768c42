"""The real engines on this machine's CPU, as ``make engines`` builds them."""

from __future__ import annotations

from pathlib import Path

import pytest

BUILT = Path.home() / ".cache/pytest-areal-eval/engines"


def python_of(kind: str) -> Path:
    """The interpreter that has an engine; the test is skipped without it."""
    python = BUILT / kind / "bin/python"
    if not python.exists():
        pytest.skip(f"{python} is not there: make engines")
    return python
