"""Who may import whom: what docs/architecture.md draws, read from the sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pytest_areal_eval

PACKAGE = Path(pytest_areal_eval.__file__).parent
ROOMS_OF_PYTEST = {"plugin", "hooks", "options", "collection", "session", "runs", "report", "cli", "backends"}
IMPORT = re.compile(r"^\s*(?:from|import) (pytest_areal_eval\.\w+|_?pytest\b)", re.MULTILINE)
SOURCES = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def imports_of(room: str) -> dict[str, set[Path]]:
    """What the files of a room import of this package and of pytest, with the files."""
    found: dict[str, set[Path]] = {}
    for path, text in SOURCES.items():
        if path.parts[0].removesuffix(".py") == room:
            for name in IMPORT.findall(text):
                found.setdefault(name.removeprefix("pytest_areal_eval."), set()).add(path)
    return found


ROOMS = sorted({path.parts[0].removesuffix(".py") for path in SOURCES})


@pytest.mark.parametrize("room", sorted(set(ROOMS) - ROOMS_OF_PYTEST - {"__init__"}))
def test_below_the_line_nothing_imports_pytest_or_a_room_above_it(room: str) -> None:
    above = {name: paths for name, paths in imports_of(room).items() if name in ROOMS_OF_PYTEST | {"pytest"}}
    assert above == {}


@pytest.mark.parametrize("room", ROOMS)
def test_nobody_imports_what_pytest_keeps_to_itself(room: str) -> None:
    assert "_pytest" not in imports_of(room)


def test_schedulers_know_no_model_and_no_engine() -> None:
    assert set(imports_of("schedulers")) <= {"schedulers", "errors", "redact", "programs"}


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_says_what_it_is_for(room: str) -> None:
    home = Path(room, "__init__.py") if Path(room, "__init__.py") in SOURCES else Path(f"{room}.py")
    assert re.match(r'""".{30,}', SOURCES[home]), f"{home} begins with no docstring that says its job"
