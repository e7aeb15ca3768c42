"""AReaL's ``gsm8k_eval.py`` in its own six steps, without pytest and without AReaL.

python examples/gsm8k_eval.py examples/gsm8k_eval.yaml actor.path=/ckpt rollout.backend=sglang:d4 scheduler.type=ray
"""

import sys
from pathlib import Path

from pytest_areal_eval import ControllerSettings, RolloutController
from pytest_areal_eval.allocation import parse_allocation
from pytest_areal_eval.checkpoint import load_tokenizer
from pytest_areal_eval.config import load_config
from pytest_areal_eval.config.options import NOT_FOR_SERVERS
from pytest_areal_eval.datasets import load_dataset
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.engines.server import ServerSpec
from pytest_areal_eval.engines.sglang import SGLangEngine
from pytest_areal_eval.engines.vllm import VLLMEngine
from pytest_areal_eval.schedulers.local import LocalScheduler
from pytest_areal_eval.schedulers.ray.scheduler import RayScheduler
from pytest_areal_eval.schedulers.slurm import SlurmScheduler
from pytest_areal_eval.stats import tabulate_stats

LOGS = Path("eval-results/logs")
SCHEDULERS = {
    "local": lambda: LocalScheduler(log_dir=LOGS),
    "ray": lambda: RayScheduler(log_dir=LOGS),
    "slurm": lambda: SlurmScheduler(shared_dir=LOGS),
}


def make_engine(config, allocation, has_gpus):
    model, name = config.actor.path, allocation.backend
    if name == "hf":
        return HFEngine(model, replicas=allocation.data_parallel_size, gpus=int(has_gpus))
    if name not in ("sglang", "vllm"):
        raise ValueError(f"Invalid backend: {name}")
    section = {"sglang": config.sglang, "vllm": config.vllm}[name]
    args = {key: value for key, value in section.items() if key not in NOT_FOR_SERVERS and value is not None}
    gpus = allocation.tp_size * allocation.pp_size
    spec = ServerSpec(model=model, served_name="default", allocation=allocation, gpus=gpus, args=args, seed=config.seed)
    return SGLangEngine(spec) if name == "sglang" else VLLMEngine(spec)


def main(args):
    config = load_config(args[0], args[1:])  # 1: the configuration
    allocation = parse_allocation(config.rollout.backend, "rollout.backend=")  # 2: the allocation
    kind = config.scheduler.type or "local"  # 3: the scheduler
    if kind not in SCHEDULERS:
        raise ValueError(f"Unknown scheduler type: {kind}")
    scheduler = SCHEDULERS[kind]()
    has_gpus = any(node.gpus_total for node in scheduler.capacity().nodes)
    engine = make_engine(config, allocation, has_gpus)  # 4: the engine with its server's arguments
    settings = ControllerSettings(max_concurrency=config.rollout.max_concurrent_rollouts, seed=config.seed)
    tokenizer = load_tokenizer(config.tokenizer_path or config.actor.path)
    try:
        with RolloutController(engine, scheduler, settings=settings, tokenizer=tokenizer) as eval_rollout:
            eval_rollout.initialize(role="eval-rollout")
            workflow = "pytest_areal_eval.workflows.RLVRWorkflow"
            kwargs = {
                "reward_fn": "pytest_areal_eval.rewards.gsm8k_reward_fn",
                "gconfig": config.eval_gconfig,
                "tokenizer": tokenizer,
                "enable_thinking": False,
            }
            dataset = load_dataset(config.valid_dataset.path, base_dir=Path.cwd())
            for row in dataset.records:  # 5: the controller, and every item to it
                content = row["question"] + "\nPlease put your final answer within \\boxed{}."
                item = {"messages": [{"role": "user", "content": content}], "answer": row["answer"]}
                eval_rollout.submit(item, workflow, kwargs, config.eval_gconfig.n_samples, item_id=row["id"])
            rollouts = eval_rollout.wait()  # 6: the results, each with its id, and the statistics
            worst = min(rollouts, key=lambda rollout: rollout.reward)
            print(f"worst item: {worst.item_id} {worst.rewards} {worst.text!r}")
            print(f"Evaluation Results:\n{tabulate_stats(eval_rollout.export_stats())}")
    finally:
        scheduler.close()


if __name__ == "__main__":
    main(sys.argv[1:] or sys.exit(__doc__))
