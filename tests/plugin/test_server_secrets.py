"""What a server is told in secret is in nothing that is shown or kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from engines.servers import MODEL
from standin import engines

SECRET, TOO = "open-sesame-4711", "hush-0815-hush"
ENGINE_LOST = 16
SUITE = """
from pytest_areal_eval import evaluation

ROWS = [{"id": f"g{n}", "question": f"Question {n}.", "answer": "42"} for n in range(3)]

@evaluation(ROWS, workflow="support.ask.Ask")
def test_gsm(rollout):
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm: None) -> pytest.Pytester:
    """A suite, for a pytest whose environment has a secret."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makeini("[pytest]\naddopts = -p no:randomly -p no:asyncio -p no:cov -p no:hypothesispytest\n")
    pytester.makepyfile(SUITE)
    return pytester


def kept(folder: Path) -> str:
    """All that a run has written, but for the servers' own logs."""
    files = [path for path in folder.rglob("*") if path.is_file() and "logs" not in path.parts]
    return "".join(path.read_text(errors="replace") for path in files)


def test_a_failing_servers_secrets_are_shown_nowhere(suite: pytest.Pytester) -> None:
    """C93: what it said last is shown, but for that."""
    told = """sh -c 'test "$MY_API_KEY" != ""; echo "denied: $HF_TOKEN $MY_API_KEY"; exit 2'"""
    options = ["--server-env=HF_TOKEN", f"--server-env=MY_API_KEY={TOO}", f"--engine-cmd={told}"]
    result = suite.runpytest("--backend=vllm", f"--model={MODEL}", "--engine-arg=hf-token=typed-by-hand", *options)
    assert result.ret == ENGINE_LOST
    result.stdout.fnmatch_lines(["*denied: [*][*][*] [*][*][*]"])
    seen = str(result.stdout) + str(result.stderr) + kept(suite.path / "eval-results")
    assert "command_line" in seen
    assert not [secret for secret in (SECRET, TOO, "typed-by-hand") if secret in seen]


def test_a_good_runs_secrets_are_kept_nowhere(suite: pytest.Pytester) -> None:
    command = f"--engine-cmd={sys.executable} {engines.__file__} vllm"
    result = suite.runpytest("--backend=vllm", f"--model={MODEL}", command, "--server-env=HF_TOKEN", "-v")
    assert result.ret == 0
    kept_and_shown = str(result.stdout) + str(result.stderr) + kept(suite.path / "eval-results")
    assert '"kind":"episode"' in kept_and_shown
    assert SECRET not in kept_and_shown
