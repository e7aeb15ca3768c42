"""What people bring from AReaL, on the shipped checkpoint: a training YAML, workflows, rewards, an agent."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
from support.sessions import TESTS, TINY, Session

SOURCE = f"""
import json
from pytest_areal_eval import evaluation

with open({str(TINY.parents[1] / "evals/data/arithmetic.jsonl")!r}) as file:
    ROWS = [row for row in map(json.loads, file) if "/" not in row["answer"]][:5]
FILE = "support.areal_workflows."

def ask(record):
    return record["question"] + "\\nPlease put your final answer within \\\\boxed{{}}."

@evaluation(ROWS, prompt=ask, workflow=FILE + "TheirWorkflow", reward_fn=FILE + "short_is_better")
def test_own_workflow(rollout):
    pass

@evaluation(ROWS, prompt=ask, workflow=FILE + "Derived", reward_fn="areal.reward.gsm8k.gsm8k_reward_fn")
def test_derived(rollout):
    pass

@evaluation(ROWS, prompt=ask, workflow="areal.workflow.rlvr.RLVRWorkflow", reward_fn=FILE + "gsm8k_reward_fn")
def test_areals_name(rollout):
    pass

@evaluation(ROWS, prompt=ask, workflow=FILE + "WithClient", reward_fn="areal.reward.gsm8k.gsm8k_reward_fn")
def test_client(rollout):
    pass

@evaluation(ROWS, prompt="question", workflow="support.areal_math_agent.MathAgent")
def test_agent(rollout):
    pass

@evaluation(ROWS, prompt=ask, workflow="areal.workflow.openai.math_agent.MultiTurnMathAgent",
            workflow_kwargs={{"max_turns": 2, "max_tokens": 5, "max_completion_tokens": 200, "temperature": 0.0}})
def test_areals_agent(rollout):
    pass
"""


def test_a_file_of_workflows_a_yaml_and_an_agent_run_without_areal(session: Session) -> None:
    assert importlib.util.find_spec("areal") is None
    pytest.importorskip("openai")
    with_agent = [] if importlib.util.find_spec("agents") else ["--deselect=test_evals.py::test_agent"]
    shutil.copy(TESTS / "data/configs/gsm8k.yaml", session.path / "gsm8k.yaml")
    overrides = ["gconfig.n_samples=1", "gconfig.temperature=0", "gconfig.max_new_tokens=200", "~valid_dataset"]
    typed = ["--config=gsm8k.yaml", *(f"--set={override}" for override in overrides)]
    typed += ["--areal-shim", f"--model={TINY}", "--backend=hf", *with_agent]
    assert session.write(SOURCE).run(*typed, limit_s=180) == pytest.ExitCode.OK, session.output
    found = {row["evaluation"]: [] for row in session.rows}
    for row in session.rows:
        found[row["evaluation"]].append(row)
    assert sum(row["reward"] for row in found["test_own_workflow"]) >= 4.5, session.output
    for name in ("test_derived", "test_areals_name"):
        assert sum(row["reward"] for row in found[name]) >= 4, session.output
        assert all(row["extracted"] for row in found[name])
    for name in ("test_client", "test_areals_agent"):
        assert sum(row["reward"] for row in found[name]) >= 4, session.output
    assert found["test_own_workflow"][0]["stats"]["eval-rollout/length"]["type"] == "avg_min_max"
    (folder,) = {file.parent for file in session.path.glob("eval-results/20*/stats.json")}
    stats = json.loads((folder / "stats.json").read_text())
    assert (stats["eval-rollout/accepted"], stats["eval-rollout/rejected"]) == (len(session.rows), 0.0)
    assert (stats["eval-rollout/answers"], stats["timeperf/generate__count"]) == (5.0, 5)
    assert stats["eval-rollout/length/min"] > 1
    if not with_agent:
        assert sum(row["reward"] for row in found["test_agent"]) >= 4, session.output
    dumped = [
        json.loads(file.read_text()) for file in session.path.glob("experiments/logs/*/*/*/eval-rollout/0/*.jsonl")
    ]
    assert sorted((line["evaluation"], line["item_id"]) for line in dumped) == sorted(
        (row["evaluation"], row["item_id"]) for row in session.rows
    )
