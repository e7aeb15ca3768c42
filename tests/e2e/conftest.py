"""What the tests of whole sessions share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sessions import Session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session to be started; nothing of it outlives the test."""
    made = Session(tmp_path)
    yield made
    made.end()
