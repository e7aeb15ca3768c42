"""Engines from the command line: attached servers, and what is refused with one message."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engines.servers import MODEL, STANDIN, environment
from standin.engines import VLLM, Hosted
from standin.http11 import Reply, Request
from standin.server import in_thread
from support.plugins import without
from support.refusals import refused

USAGE, ENGINE = pytest.ExitCode.USAGE_ERROR, 16
SUITE = """
from pytest_areal_eval import evaluation

ROWS = [{"id": f"g{n}", "question": f"Question {n}.", "answer": "42"} for n in range(12)]

@evaluation(ROWS, workflow="support.ask.Ask")
def test_gsm(rollout):
    pass
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm: None) -> Run:
    """Run twelve rows with the default fixtures."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.delenv("CI", raising=False)

    def go(*args: str, source: str = SUITE) -> pytest.RunResult:
        pytester.makeini(f"[pytest]\naddopts = {without()}\n")
        pytester.makepyfile(test_evals=source)
        return pytester.runpytest("-q", *args)

    return go


def test_rows_are_answered_by_a_server_that_runs_already(run: Run) -> None:
    with in_thread(VLLM) as server:
        result = run(f"--base-url={server.url}/v1", "--model=tiny-math")
        assert server.load.requests == 12
    result.stdout.fnmatch_lines(["engine: server/0 is ready*tiny-math, context 32768, * requests at once"])


def test_further_servers_are_counted(run: Run) -> None:
    with in_thread(VLLM, latency_s=1.5) as first, in_thread(VLLM, latency_s=1.5) as second:
        result = run(f"--base-url={first.url}", f"--base-url={second.url}", "--model=tiny-math")
    result.stdout.fnmatch_lines(["engine: server/? is ready*requests at once; 1 more server followed"])


def test_the_only_model_needs_no_name(run: Run) -> None:
    with in_thread(VLLM) as server:
        run(f"--base-url={server.url}")
        assert server.load.requests == 12


def test_the_loss_of_exactness_is_told(run: Run) -> None:
    with in_thread(Hosted) as server:
        result = run(f"--base-url={server.url}", "--model=gpt-x")
    result.stdout.fnmatch_lines(["warning: messages through /v1/chat/completions: the server tokenizes*"])


def test_a_wrong_key_is_one_message(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "wrong")
    with in_thread(Hosted, token="right") as server:
        result = run(f"--base-url={server.url}", "--model=gpt-x", "--api-key-env=MY_KEY")
    refused(result, ENGINE, "refuses the key of --api-key-env", "Check that variable's value.")


def test_an_unknown_model_is_one_message(run: Run) -> None:
    with in_thread(Hosted) as server:
        result = run(f"--base-url={server.url}", "--model=gpt-z")
    refused(result, ENGINE, "does not serve 'gpt-z'; it serves: gpt-x, gpt-y")


def test_answers_longer_than_the_servers_context_are_refused(run: Run) -> None:
    with in_thread(VLLM, context_length=512) as server:
        result = run(f"--base-url={server.url}", "--max-new-tokens=512")
        assert server.load.requests == 0
    said = "asks for max_new_tokens=512; the server's context is 512 tokens, prompt and answer together"
    refused(result, USAGE, f"*{said}", "Ask for fewer: --max-new-tokens=256*")


def test_an_unknown_flag_is_one_message_in_the_servers_words(run: Run) -> None:
    command = f"--engine-cmd={sys.executable} {STANDIN} vllm"
    result = run(f"--model={MODEL}", "--backend=vllm", command, "--engine-arg=no-such-flag=1")
    refused(result, ENGINE, "error: unrecognized arguments: --no-such-flag 1", "by hand to see more.")


@pytest.mark.parametrize("argument", ["enable_thinking=False", "top_k=4", "template_kwargs={'reasoning': 'low'}"])
def test_a_setting_that_a_hosted_api_does_not_have_is_one_message_before_any_row(run: Run, argument: str) -> None:
    with in_thread(Hosted) as server:
        result = run(
            f"--base-url={server.url}", "--model=gpt-x", source=SUITE.replace("ROWS, w", f"ROWS, {argument}, w")
        )
        assert server.load.requests == 0
    name = "reasoning" if "reasoning" in argument else argument.partition("=")[0]
    refused(
        result, USAGE, f"ERROR: test_gsm sets {name}, which OpenAI's chat API does not have", "Leave it at its default"
    )


def test_servers_stay_up_for_checkpoints_that_differ_in_their_weights_alone(
    run: Run, pytester: pytest.Pytester
) -> None:
    """The third one has another template, so it gets a server of its own."""
    models = [shutil.copytree(MODEL, pytester.path / f"step-{n}") for n in (1, 2, 3)]
    (models[1] / "model.safetensors").write_bytes(b"other")
    (models[2] / "chat_template.jinja").write_text("{{ messages[0].content }}")
    command = f"--engine-cmd={sys.executable} {STANDIN} sglang"
    result = run(*(f"--model={model}" for model in models), "--backend=sglang", command)
    assert result.parseoutcomes() == {"missed": 3 * 12}
    (described,) = (pytester.path / "eval-results").glob("2*/run.json")
    ready = [event["text"] for event in json.loads(described.read_text())["events"] if event["kind"] == "ready"]
    assert [text.partition(" is ")[2].partition(" after ")[0] or text for text in ready] == [
        "ready",
        f"eval-rollout/0 has loaded {models[1]}",
        "ready",
    ]
    assert len(list((described.parent / "logs").iterdir())) == 2


def test_a_template_that_fails_over_every_row_is_a_line_for_each_and_one_for_all(run: Run, tmp_path: Path) -> None:
    """Not a library's traceback twelve times, with the reason somewhere in it."""
    model = shutil.copytree(MODEL, tmp_path / "step-1")
    (model / "chat_template.jinja").write_text("{{ raise_exception('no user turn') }}")
    command = f"--engine-cmd={sys.executable} {STANDIN} vllm"
    suite = SUITE.replace('"support.ask.Ask"', '"support.ask.Chat"')
    result = run(f"--model={model}", "--backend=vllm", command, source=suite)
    said = "the chat template fails over the messages: TemplateError: no user turn"
    result.stdout.fnmatch_lines(
        [f"workflow_error: item 'g7': {said}", f"test_gsm: all 12 items with errors say the same: {said}"]
    )
    assert "Traceback" not in result.stdout.str()


def test_a_page_instead_of_a_server_is_one_message(run: Run) -> None:
    class Page(VLLM):
        def models(self, request: Request) -> Reply:
            return Reply(b"<html>Welcome to nginx!</html>")

    with in_thread(Page) as server:
        result = run(f"--base-url={server.url}", "--model=tiny-math")
    refused(
        result,
        ENGINE,
        "does not answer as a server of models does: *Welcome to nginx",
        "See what is there: curl -i http*",
    )


def test_an_engine_that_is_too_old_is_one_message(run: Run, tmp_path: Path) -> None:
    python = environment(tmp_path, "sglang", "0.4.0")
    result = run(f"--model={MODEL}", "--backend=sglang", f"--engine-python={python}")
    refused(result, USAGE, "has sglang 0.4.0, which is too old: 0.5.10 is needed", "Upgrade it (pip install*")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend=openai"], "--backend=openai needs the address of a server"),
        (["--backend=vllm:d2", "--base-url=http://h"], "these servers run already, as many as there are addresses"),
        (["--base-url=http://h", "--engine-arg=a=1"], "--engine-arg with --base-url: these servers run already"),
        (["--base-url=h:80"], "--base-url=h:80: not an address"),
        (
            ["--base-url=http://h", "--api-key-env=NOT_SET_ANYWHERE"],
            "--api-key-env=NOT_SET_ANYWHERE: that environment*",
        ),
        (["--api-key-env=HOME", f"--model={MODEL}"], "--api-key-env is for servers that run already"),
        (["--engine-arg=max-batch=x", f"--model={MODEL}"], "--engine-arg=max_batch=x: not a whole number"),
        (
            ["--engine-arg=colour=red", f"--model={MODEL}"],
            "--engine-arg=colour: the embedded engine has no such setting",
        ),
        (["--engine-arg==1", f"--model={MODEL}"], "--engine-arg==1: no flag's name"),
        (
            ["--engine-arg=port=1", "--backend=vllm", f"--model={MODEL}"],
            "vllm's setting port follows from other options",
        ),
        (["--engine-cmd=vllm 'serve", "--backend=vllm", f"--model={MODEL}"], "--engine-cmd=vllm 'serve: No closing*"),
        (["--backend=vllm", "--engine-python=/no/python", f"--model={MODEL}"], "--engine-python=/no/python: *"),
    ],
)
def test_options_at_odds_are_refused_before_anything_starts(run: Run, arguments: list[str], said: str) -> None:
    refused(run(*arguments), USAGE, said)
