"""A suite whose reward is a file of its own, ``grading.py``, so that a test can change it between two runs."""

from __future__ import annotations

GRADED = """
from pytest_areal_eval import evaluation
from grading import exact

@evaluation([{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(4)],
            prompt="question", reward_fn=exact, gates=["reward >= 0.9"])
def test_gsm(rollout):
    pass
"""
EXACT = "def exact(prompt, completions, *ids, answer, **columns):\n    return float(completions == answer)\n"
LENIENT = "def exact(prompt, completions, *ids, answer, **columns):\n    return 1.0\n"
