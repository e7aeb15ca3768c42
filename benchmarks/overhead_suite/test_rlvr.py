"""One question, one answer, a reward that costs nothing; the rows come with ``--dataset test_rlvr=FILE``."""

from pytest_areal_eval import evaluation


def grade(prompt, completions, prompt_ids, completion_ids, answer, **columns):
    """Whether the answer stands in the completion."""
    return float(answer in completions)


@evaluation(dataset=[], reward_fn=grade)
def test_rlvr(rollout):
    """Scored."""
