"""GSM8K's recorded solutions of two models through ``pytest --replay``: does every verdict equal the authors'?

The files are those of https://github.com/openai/grade-school-math: ``test.jsonl`` (its test split) and, from
``example_model_solutions.jsonl`` and its like, ``6b_finetuning.jsonl`` and ``175b_finetuning.jsonl`` with ``index``,
``completion`` and the authors' own ``is_correct``.

    python benchmarks/gsm8k_replay.py --data DIR
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from machine import header, pytest_command, run, table

from pytest_areal_eval.journal import latest_episodes

MODELS = ("6b_finetuning", "175b_finetuning")


def main() -> None:
    """Replay each file and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with test.jsonl and the recorded solutions")
    data = parser.parse_args().data.resolve()
    print(header("math-verify"), end="\n\n")
    rows = [replay(model, data) for model in MODELS]
    print(table(("recorded solutions", "items", "right", "verdicts that differ", "wall s", "CPU s"), rows))


def replay(model: str, data: Path) -> tuple[object, ...]:
    """Score one model's solutions in a real pytest run."""
    recorded = [json.loads(line) for line in (data / f"{model}.jsonl").read_text().splitlines()]
    with tempfile.TemporaryDirectory() as temporary:
        results, replayed = Path(temporary) / "results", Path(temporary) / f"{model}.jsonl"
        lines = [json.dumps({"index": row["index"], "completion": row["completion"]}) for row in recorded]
        replayed.write_text("\n".join(lines))
        ended = run(
            pytest_command(
                "evals/test_gsm8k.py",
                f"--replay={replayed}",
                f"--dataset=test_gsm8k={data / 'test.jsonl'}",
                f"--results-dir={results}",
            )
        )
        episodes = {episode.item_id: episode for episode in latest_episodes(results / "latest").values()}
    ids = sorted(episodes)  # zero-padded row numbers
    verdicts = [episodes[item].reward == 1.0 for item in ids]
    differing = [row["index"] for row, verdict in zip(recorded, verdicts, strict=True) if row["is_correct"] != verdict]
    for index in differing:
        print(f"{model}, row {index}: the authors say {recorded[index]['is_correct']}, we say {verdicts[index]}")
    return model, len(verdicts), sum(verdicts), len(differing), f"{ended.wall_s:.1f}", f"{ended.cpu_s:.1f}"


if __name__ == "__main__":
    main()
