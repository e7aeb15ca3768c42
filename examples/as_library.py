"""The controller as a library: AReaL's steps, without pytest."""

from pathlib import Path

from pytest_areal_eval import GenerationHyperparameters, RolloutController
from pytest_areal_eval.checkpoint import load_tokenizer
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.schedulers.local import LocalScheduler
from pytest_areal_eval.stats import tabulate_stats

MODEL = "models/tiny-math"
QUESTION = "Ada has 12 apples. Ada buys 5 more. How many apples does Ada have now?"

if __name__ == "__main__":
    scheduler = LocalScheduler(log_dir=Path("eval-results/logs"))
    with RolloutController(HFEngine(MODEL), scheduler, tokenizer=lambda: load_tokenizer(MODEL)) as controller:
        controller.initialize(role="eval-rollout")
        item = {"messages": [{"role": "user", "content": QUESTION}], "answer": "17"}
        kwargs = {
            "reward_fn": "pytest_areal_eval.rewards.gsm8k_reward_fn",
            "gconfig": GenerationHyperparameters(max_new_tokens=128, greedy=True),
            "tokenizer": controller.tokenizer,
        }
        task = controller.submit(item, "pytest_areal_eval.workflows.RLVRWorkflow", kwargs, group_size=2)
        (rollout,) = controller.wait(ids=[task])
        print(rollout.reward, [episode.completion for episode in rollout.episodes])
        print(tabulate_stats(controller.export_stats()))
    scheduler.close()
