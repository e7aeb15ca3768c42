"""GSM8K, grade-school mathematics (Cobbe et al. 2021), zero shot.

From the hub, or from a local file: ``--dataset test_gsm8k=path/to/test.jsonl``, or once and for all in pytest's ini
file ``areal_dataset = test_gsm8k=path/to/test.jsonl``.
"""

from pytest_areal_eval import evaluation


def ask(record):
    """The question, with the form of the answer."""
    return f"{record['question']}\nPlease put your final answer within \\boxed{{}}."


@evaluation(
    dataset="openai/gsm8k",
    config="main",
    split="test",
    prompt=ask,
    reward_fn="pytest_areal_eval.rewards.gsm8k_reward_fn",
    gates=["error_rate <= 0.01"],
)
def test_gsm8k(rollout):
    """Grade-school math, zero shot, answer in a box."""
