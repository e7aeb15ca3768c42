"""Folders of compiled graphs: kept between runs, and never two servers' at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_areal_eval.engines.caches import claim

CLAIM = (
    "import sys, pathlib; from pytest_areal_eval.engines.caches import claim; print(claim(pathlib.Path(sys.argv[1])))"
)


def another_sessions(folder: Path) -> Path:
    done = subprocess.run([sys.executable, "-c", CLAIM, str(folder)], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_two_sessions_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "areal-eval/eval-rollout-0"
    assert claim(folder) == folder
    assert another_sessions(folder) == folder.with_name("eval-rollout-0.2")


def test_a_session_gets_the_folder_of_the_one_before_and_its_servers_keep_it(tmp_path: Path) -> None:
    """A server that is started anew, or for another checkpoint, finds what it compiled."""
    folder = tmp_path / "eval-rollout-0"
    assert another_sessions(folder) == folder
    assert [claim(folder), claim(folder)] == [folder, folder]


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null"])
def test_where_nothing_can_be_locked_the_server_gets_the_folder_all_the_same(home: str) -> None:
    """It may be there on the node that the server runs on."""
    assert claim(Path(home) / "eval-rollout-0") == Path(home) / "eval-rollout-0"
