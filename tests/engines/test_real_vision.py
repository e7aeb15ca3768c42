"""Pictures on the real vLLM on this machine's CPU, where ``make engines`` has built it: it sees them as they are."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from engines.servers import spec
from support.checkpoints import seeing
from support.real_engines import python_of

from pytest_areal_eval.checkpoint import load_tokenizer
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.engines.vllm import VLLMEngine
from pytest_areal_eval.schedulers.local import LocalScheduler
from pytest_areal_eval.workflows import VisionRLVRWorkflow

COLOURS = ("red", "green", "blue")
ASKS = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]
TOKENS = 16


def painted(colour: str) -> Any:
    """A picture of one colour."""
    from PIL import Image

    return Image.new("RGB", (40, 30), colour)


def encoded(colour: str) -> bytes:
    """The same as a PNG file."""
    file = io.BytesIO()
    painted(colour).save(file, "PNG")
    return file.getvalue()


def anything(**columns: Any) -> float:
    """Every answer will do."""
    return 1.0


def by_transformers(model: Path) -> list[str]:
    """Its greedy answers, one picture at a time."""
    import torch
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(model)
    llava = LlavaForConditionalGeneration.from_pretrained(model, dtype=torch.float32).eval()
    prompt, answers = processor.apply_chat_template(ASKS, add_generation_prompt=True), []
    for colour in COLOURS:
        inputs = processor(text=prompt, images=painted(colour), return_tensors="pt")
        with torch.inference_mode():
            ids = llava.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)[0]
        answers.append(processor.tokenizer.decode(ids[inputs["input_ids"].shape[1] :]))
    return answers


def test_each_picture_is_seen_as_transformers_sees_it(tmp_path: Path) -> None:
    """Prepared by the server's processor, or by the checkpoint's here."""
    python = python_of("vllm")
    model = seeing(tmp_path / "seeing")
    seen = by_transformers(model)
    assert len(set(seen)) == len(COLOURS)
    engine = VLLMEngine(spec("vllm", python=str(python), model=str(model)))
    scheduler = LocalScheduler(log_dir=tmp_path / "logs", gpus=())
    settings = ControllerSettings(restarts=0, start_timeout_s=600.0)
    rows = [{"question": "What is it?", "image": encoded(colour)} for colour in COLOURS]
    with RolloutController(
        engine, scheduler, settings=settings, tokenizer=lambda: load_tokenizer(str(model), need_template=True)
    ) as controller:
        controller.initialize()
        for processor in (None, str(model)):
            sampling = {"greedy": True, "max_new_tokens": TOKENS}
            given = {"reward_fn": anything, "processor": processor, "gconfig": sampling}
            done = controller.rollout_batch(rows, VisionRLVRWorkflow, given)
            assert [r.errors for r in done] == [()] * len(COLOURS)
            assert [r.episodes[0].completion for r in done] == seen
    scheduler.close()
