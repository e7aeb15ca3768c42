"""What a refusal looks like: one message, the documented exit status, and no traceback of ours."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

OURS = ("Traceback (most recent call last)", "INTERNALERROR", "pytest_areal_eval/")


def refused(result: pytest.RunResult, status: int, *said: str) -> None:
    """Check that a run ended with ``status`` and said each of ``said`` (wildcards) on exactly one line."""
    lines = [*result.outlines, *result.errlines]
    text = "\n".join(lines)
    assert result.ret == status, text
    for pattern in said:
        found = [line for line in lines if fnmatch(line, f"*{pattern}*")]
        assert len(found) == 1, f"{len(found)} lines are like {pattern!r} in\n{text}"
    shown = [mark for mark in OURS if mark in text]
    assert not shown, f"{shown} in\n{text}"
