"""The shipped checkpoint's verdicts, item by item, against a plain ``transformers`` loop: one prompt at a time, greedy.

The loop and its grader are written here, apart from the product, so that an error of the product cannot hide in both.

    python benchmarks/tiny_math_verdicts.py
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machine import ROOT, header, pytest_command, run, table

from pytest_areal_eval.api import Episode
from pytest_areal_eval.journal import latest_episodes

MODEL = ROOT / "models" / "tiny-math"
FILES = ("arithmetic.jsonl", "arithmetic-hard.jsonl")
MAX_NEW_TOKENS = 256
Answers = Mapping[str, tuple[str, bool]]
"""By item: the completion, and whether it is right."""


def main() -> None:
    """Compare on each file and print a row for it."""
    print(header("torch", "transformers"), end="\n\n")
    columns = (
        "data",
        "items",
        "right",
        "verdicts that differ",
        "completions that differ",
        "pytest s",
        "loop s",
    )
    print(table(columns, [compare(ROOT / "evals" / "data" / name) for name in FILES]))


def compare(data: Path) -> tuple[object, ...]:
    """Both ways on one file."""
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    ours, pytest_s = evaluate(data)
    started = time.perf_counter()
    plain = plain_loop(rows)
    loop_s = time.perf_counter() - started
    if ours.keys() != plain.keys():
        raise SystemExit(f"{data.name}: pytest evaluated {len(ours)} items, the loop {len(plain)}")
    verdicts = [item for item in plain if (ours[item].reward == 1.0) != plain[item][1]]
    texts = [item for item in plain if ours[item].completion != plain[item][0]]
    for item in {*verdicts, *texts}:
        print(f"{data.name} {item}: pytest {ours[item].reward} {ours[item].completion!r}, loop {plain[item]!r}")
    right = sum(good for _, good in plain.values())
    return data.name, len(plain), right, len(verdicts), len(texts), f"{pytest_s:.1f}", f"{loop_s:.1f}"


def evaluate(data: Path) -> tuple[Mapping[str, Episode], float]:
    """A real run with the embedded engine; its journal, and its wall seconds."""
    with tempfile.TemporaryDirectory() as results:
        command = pytest_command(
            "evals/test_arithmetic.py",
            f"--model={MODEL}",
            f"--dataset=test_arithmetic={data}",
            f"--max-new-tokens={MAX_NEW_TOKENS}",
            f"--results-dir={results}",
        )
        ended = run(command, expect=(0, 1))  # 1: the gate is for the easier file
        episodes = latest_episodes(Path(results) / "latest").values()
        return {episode.item_id: episode for episode in episodes}, ended.wall_s


def plain_loop(rows: list[dict[str, Any]]) -> Answers:
    """``model.generate`` for one prompt after the other."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the model is so small that a second thread only costs
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    answers = {}
    for row in rows:
        question = f"{row['question']}\nPlease put your final answer within \\boxed{{}}."
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            enable_thinking=False,
            return_tensors="pt",
            return_dict=True,
        )
        with torch.inference_mode():
            output = model.generate(**prompt, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        text = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        boxes = re.findall(r"\\boxed\{(-?\d+)\}", text)
        gold = int(row["answer"].rpartition("####")[2])
        answers[row["id"]] = text, bool(boxes) and int(boxes[-1]) == gold
    return answers


if __name__ == "__main__":
    main()
