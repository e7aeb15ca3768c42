"""Run folders made by hand, for what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import Episode, EpisodeStatus
from pytest_areal_eval.journal import Journal
from pytest_areal_eval.journal.items import write_items


def episode(item_id: str, index: int = 0, reward: float | None = 0.0, **fields: Any) -> Episode:
    """A scored episode unless ``fields`` say otherwise."""
    usual: dict[str, Any] = {
        "status": EpisodeStatus.SCORED,
        "prompt": f"question {item_id}",
        "completion": f"answer {item_id}",
        "stop_reason": "stop",
        "input_tokens": 20,
        "output_tokens": 10 + index,
        "latency_s": 0.5,
        "started_at": 1_700_000_000.0 + index,
        "replica": "eval-rollout/0",
    }
    return Episode(item_id=item_id, index=index, reward=reward, **{**usual, **fields})


def transcript(said: str = "3 times 4 is 12.") -> tuple[dict[str, Any], ...]:
    """An agent's two calls of the model, the first of which asks for a tool, as the journal keeps them."""
    call = {"id": "c1", "name": "multiply", "arguments": '{"a": 3, "b": 4}'}
    cost = {"input_tokens": 50, "output_tokens": 9, "latency_s": 0.25, "reasoning": ""}
    asked = [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": [{"type": "text", "text": said}]},
    ]
    again = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "multiply", "arguments": "{}"}}]}
    return (
        {"repeated": 0, "messages": asked, "content": "", "tool_calls": [call], **cost},
        {
            "repeated": 2,
            "messages": [again, {"role": "tool", "tool_call_id": "c1", "content": "12"}],
            "content": said,
            "tool_calls": [],
            **cost,
        },
    )


def write_run(
    folder: Path,
    evaluations: Mapping[str, Sequence[Episode]],
    *,
    columns: Mapping[str, Mapping[str, Any]] | None = None,
    info: Mapping[str, Any] | None = None,
    **described: Any,
) -> Path:
    """Write a run.

    Args:
        folder: made if missing.
        evaluations: episodes by evaluation.
        columns: records by item id, the same for every evaluation.
        info: more of ``run.json``.
        described: more of each evaluation's description.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptions = {name: describe(episodes) | described for name, episodes in evaluations.items()}
    run = {"schema": 1, "status": "finished", "exit_status": 0, "started_at": 1_700_000_000.0, "models": {"m": {}}}
    (folder / "run.json").write_text(json.dumps(run | {"evaluations": descriptions} | dict(info or {})))
    with Journal.open(folder) as journal:
        for name, episodes in evaluations.items():
            for one in episodes:
                journal.append(replace(one, evaluation=name))
    for name in evaluations if columns else ():
        write_items(folder, name, list((columns or {}).items()))
    return folder


def describe(episodes: Sequence[Episode]) -> dict[str, Any]:
    """What ``run.json`` says of an evaluation with these episodes."""
    n = len({e.item_id for e in episodes})
    return {
        "node": "evals/test_gsm.py::gsm",
        "dataset": {"name": "gsm.jsonl", "content_hash": "0123456789abcdef", "records": n},
        "n_selected": n,
        "n_planned": n,
        "n_total": n,
        "n_samples": max((e.index + 1 for e in episodes), default=1),
        "sampling": {"temperature": 0.0, "greedy": True, "max_new_tokens": 128},
        "workflow": "RLVRWorkflow",
        "reward_fn": "gsm8k_reward_fn",
        "template": {"enable_thinking": False},
        "pass_mark": 1.0,
        "strict": False,
    }
