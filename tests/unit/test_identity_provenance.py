"""Git state, versions, command line, machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_areal_eval.journal import command_line, git_state, machine, provenance, versions


def git(folder: Path, *arguments: str) -> None:
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **identity}
    subprocess.run(["git", "-C", str(folder), *arguments], env=env, capture_output=True, timeout=30, check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-b", "trunk")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_a_clean_checkout_is_its_commit_and_branch(checkout: Path) -> None:
    state = git_state(checkout)
    assert state
    assert len(state["commit"] or "") == 40
    assert (state["branch"], state["dirty"]) == ("trunk", False)


def test_a_changed_file_makes_it_dirty_and_a_new_one_does_not(checkout: Path) -> None:
    (checkout / "new").touch()
    state = git_state(checkout)
    assert state
    assert not state["dirty"]
    (checkout / "file").write_text("2")
    state = git_state(checkout)
    assert state
    assert state["dirty"]


def test_a_detached_head_has_no_branch(checkout: Path) -> None:
    git(checkout, "checkout", "--detach")
    state = git_state(checkout)
    assert state
    assert (state["branch"], bool(state["commit"])) == (None, True)


def test_a_repository_without_commits_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-b", "trunk")
    assert git_state(tmp_path) == {"commit": None, "branch": "trunk", "dirty": False}


def test_outside_a_repository_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    assert git_state(tmp_path / "missing") is None


def test_without_git_there_is_no_state(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_state(checkout) is None


def test_a_git_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(provenance, "TIMEOUT_S", 0.2)
    started = time.monotonic()
    assert git_state(tmp_path) is None
    assert time.monotonic() - started < 10


def test_versions_name_what_is_installed_without_importing_it() -> None:
    script = (
        "import sys\nfrom pytest_areal_eval.journal import versions\nfound = versions()\n"
        "print(found['torch'], 'torch' in sys.modules, 'transformers' in sys.modules, 'pytest' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [versions()["torch"], "False", "False", "False"]
    assert versions()["python"] == sys.version.split()[0]
    assert "submitit" not in versions() or versions()["submitit"]


def test_a_command_line_hides_its_secrets() -> None:
    assert command_line(["pytest", "--api-key=abc", "--api-key", "abc", "-k", "gsm8k"]) == [
        "pytest",
        "--api-key=***",
        "--api-key",
        "***",
        "-k",
        "gsm8k",
    ]


def test_a_machine_is_described_without_gpus_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = machine()
    assert found["gpus"] == []
    assert found["cores"] >= 1
    assert found["memory_gb"] > 0


def test_gpus_are_named_as_the_driver_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine()["gpus"] == ["NVIDIA H200", "NVIDIA H200"]
