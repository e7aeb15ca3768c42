"""Numbers larger than the tiny model was trained on: four episodes for each problem."""

from pytest_areal_eval import evaluation


def ask(record):
    """The question, with the form of the answer."""
    return f"{record['question']}\nPlease put your final answer within \\boxed{{}}."


@evaluation(
    dataset="data/arithmetic-hard.jsonl",
    prompt=ask,
    reward_fn="pytest_areal_eval.rewards.gsm8k_reward_fn",
    enable_thinking=False,
    n_samples=4,
    temperature=1.0,
    max_new_tokens=256,
    gates=["pass@4 >= 0.40", "error_rate <= 0.01"],
)
def test_arithmetic_hard(rollout):
    """Word problems with numbers up to twice as large, zero shot, temperature 1."""
