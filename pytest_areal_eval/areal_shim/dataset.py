"""AReaL's way to a dataset, read by this package's loader: a path never means more than it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

GSM8K = "openai/gsm8k"
BOX = "\nPlease put your final answer within \\boxed{}."


def get_custom_dataset(
    split: str | None = None, dataset_config: Any = None, tokenizer: Any = None, processor: Any = None, **kwargs: Any
) -> list[dict[str, Any]]:
    """The records of a dataset, in this process; all of AReaL's other datasets are read as their columns are.

    Args:
        split: which split of a hub dataset.
        dataset_config: has ``path``, and may have ``type`` and ``max_length``.
        tokenizer: counts the tokens of a question where there is a ``max_length``.
        processor: not looked at; pictures stay what they are.
        kwargs: ``path``, ``type`` and ``max_length``, where there is no ``dataset_config``.

    Returns:
        For ``openai/gsm8k`` ``messages`` (the question, and where to put the answer) and ``answer`` (the solution).

    Raises:
        DatasetError: it cannot be read.
        ValueError: ``type`` is for training.
    """
    from pytest_areal_eval.datasets import load_dataset

    names = ("path", "type", "max_length")
    said: dict[str, Any] = {name: getattr(dataset_config, name, kwargs.get(name)) for name in names}
    if said["type"] not in (None, "rl"):
        raise ValueError(f"type={said['type']!r} is for training; an evaluation's datasets are of type 'rl'")
    is_gsm8k = said["path"] == GSM8K
    loaded = load_dataset(said["path"], config="main" if is_gsm8k else None, split=split, base_dir=Path.cwd())
    records = [dict(record) for record in loaded.records]
    if not is_gsm8k:
        return records
    questions = [
        {"messages": [{"role": "user", "content": row["question"] + BOX}], "answer": row["answer"]} for row in records
    ]
    longest = said["max_length"]
    if longest is None or tokenizer is None:
        return questions
    return [row for row in questions if len(tokenizer.encode(row["messages"][0]["content"])) <= longest]
