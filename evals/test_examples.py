"""The two other forms: a strict test, whose body asserts, and an async test, which is its own workflow."""

import re

from pytest_areal_eval import evaluation

EASY = [
    {
        "id": "apples",
        "question": "Ada has 12 apples. Ada buys 5 more. How many apples does Ada have now?",
        "answer": "17",
    },
    {
        "id": "coins",
        "question": "Ben has 40 coins. Then Ben loses 15. How many coins does Ben have now?",
        "answer": "25",
    },
    {
        "id": "boxes",
        "question": "Cara has 4 boxes with 6 keys in each. How many keys are there in total?",
        "answer": "24",
    },
]
BOXED = "\nPlease put your final answer within \\boxed{}."


@evaluation(
    dataset=EASY,
    prompt=lambda record: record["question"] + BOXED,
    reward_fn="pytest_areal_eval.rewards.gsm8k_reward_fn",
    enable_thinking=False,
    max_new_tokens=128,
)
def test_never_fails_easy_ones(rollout):
    """Strict: each item must hold, or its test fails."""
    assert rollout.reward == 1.0
    assert all(episode.stop_reason == "stop" for episode in rollout.episodes)


@evaluation(dataset=EASY, enable_thinking=False, max_new_tokens=128, gates=["reward >= 0.6"])
async def test_boxes_its_answer(item, engine):
    """Its own workflow: what it returns is the reward."""
    reply = await engine.chat([{"role": "user", "content": item["question"] + BOXED}])
    return float(re.search(r"\\boxed\{\d+\}", reply.text) is not None)
