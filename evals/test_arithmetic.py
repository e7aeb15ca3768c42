"""The tiny model on the arithmetic that it was trained for."""

from pytest_areal_eval import evaluation


def ask(record):
    """The question, with the form of the answer."""
    return f"{record['question']}\nPlease put your final answer within \\boxed{{}}."


@evaluation(
    dataset="data/arithmetic.jsonl",
    prompt=ask,
    reward_fn="pytest_areal_eval.rewards.gsm8k_reward_fn",
    enable_thinking=False,
    max_new_tokens=256,
    gates=["reward >= 0.95", "error_rate <= 0.01"],
)
def test_arithmetic(rollout):
    """Word problems of one to six steps, zero shot, greedy."""
