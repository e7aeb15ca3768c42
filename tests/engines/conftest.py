"""One real server on the small checkpoint for the whole session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.embedded_server import CHECKPOINT, RunningServer, end, start_server, wait_until_ready


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """Eight sequences at once, context 512."""
    running = start_server("--max-batch", "8", "--context-length", "512", "--served-model-name", "tiny")
    try:
        wait_until_ready(running)
        yield running
    finally:
        end(running)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small models lose with more, and lose a hundredfold on a busy machine: OpenMP's barriers spin."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def plain_model() -> Any:
    """The checkpoint in this process, float32."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The checkpoint's tokenizer as transformers loads it."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="session")
def questions() -> list[str]:
    """The first questions of the shipped data."""
    path = Path(__file__).parents[2] / "evals/data/arithmetic.jsonl"
    return [json.loads(line)["question"] for line in path.read_text().splitlines()[:24]]


@pytest.fixture(scope="session")
def prompts(tokenizer: Any, questions: list[str]) -> list[list[int]]:
    """The questions through the chat template."""
    return [
        list(
            tokenizer(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
                ),
                add_special_tokens=False,
            ).input_ids
        )
        for question in questions
    ]
