"""D4 on every engine: one bad row among good ones, whatever its server does with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engines.servers import attached, run_rows, spec
from standin.engines import VLLM, Hosted, SGLang
from standin.faults import Rule
from standin.server import Standin, in_thread

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.engines.base import Endpoint, Engine
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.engines.openai import OpenAIEngine
from pytest_areal_eval.engines.sglang import SGLangEngine
from pytest_areal_eval.engines.vllm import VLLMEngine

BAD = "Question 7."
ENGINES: dict[str, tuple[Callable[[], Engine], type[Standin]]] = {
    "hf": (lambda: HFEngine("tiny-math"), Standin),
    "vllm": (lambda: VLLMEngine(spec("vllm")), VLLM),
    "sglang": (lambda: SGLangEngine(spec("sglang")), SGLang),
    "openai": (lambda: OpenAIEngine([Endpoint("server/0", "http://nowhere")], "gpt-x"), Hosted),
}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(
    ("rule", "status", "attempts", "said"),
    [
        (Rule(BAD, "status", 500), EpisodeStatus.WORKFLOW_ERROR, 3, "HTTP 500: scripted 500"),
        (Rule(BAD, "status", 400), EpisodeStatus.WORKFLOW_ERROR, 1, "HTTP 400: scripted 400"),
        (Rule(BAD, "hang"), EpisodeStatus.TIMEOUT, 1, "no result within 1 s"),
        (Rule(BAD, "drop"), EpisodeStatus.WORKFLOW_ERROR, 3, "ServerDisconnected"),
        (Rule(BAD, "malformed"), EpisodeStatus.WORKFLOW_ERROR, 3, "no JSON"),
        (Rule(BAD, "empty"), EpisodeStatus.EMPTY, 1, ""),
        (Rule(BAD, "null"), EpisodeStatus.EMPTY, 1, ""),
        (Rule(BAD, "length"), EpisodeStatus.TRUNCATED, 1, ""),
        (Rule(BAD, "abort"), EpisodeStatus.WORKFLOW_ERROR, 3, "the server aborted the request"),
        (Rule(BAD, "abort", times=1), EpisodeStatus.SCORED, 2, ""),
        (Rule(BAD, "status", 500, times=1), EpisodeStatus.SCORED, 2, ""),
        (Rule(BAD, "status", 503, times=1), EpisodeStatus.SCORED, 2, ""),
    ],
    ids=lambda value: f"{value.fault} {value.status} {value.times}" if isinstance(value, Rule) else "",
)
def test_one_bad_row_costs_itself_alone(kind: str, rule: Rule, status: EpisodeStatus, attempts: int, said: str) -> None:
    """D4, C81: the good rows are kept, the bad one is named with what the server said and how often it was asked."""
    rule.hits = 0
    make, served = ENGINES[kind]
    limits: dict[str, Any] = {"episode_timeout_s": 1.0 if rule.fault == "hang" else 20.0, "max_attempts": 3}
    messages = kind == "openai" or rule.fault == "null"
    with (
        in_thread(served, latency_s=0.01, faults=[rule]) as server,
        attached(make(), server, messages=messages, **limits) as controller,
    ):
        rollouts = run_rows(controller)
        assert controller.failure is None
    bad = rollouts[7].episodes[0]
    assert [r.reward for r in rollouts if r is not rollouts[7]] == [1.0] * 11
    assert (bad.status, bad.attempts) == (status, attempts), bad.error
    assert said in bad.error
