"""An agent with four tools on the arithmetic problems: ``pip install 'pytest-areal-eval[agents]'``."""

import sys
from pathlib import Path

import pytest

from pytest_areal_eval import evaluation

pytest.importorskip("openai")
sys.path.append(str(Path(__file__).parent))

from calculator_agent import CalculatorAgent


@evaluation(
    dataset="data/arithmetic.jsonl",
    prompt="question",
    workflow=CalculatorAgent,
    max_new_tokens=256,
    gates=["reward >= 0.9", "error_rate <= 0.01"],
)
def test_math_agent(rollout):
    """Word problems, one tool call a step."""
