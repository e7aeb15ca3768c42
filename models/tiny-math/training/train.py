"""Trains the tiny model from nothing, saves three checkpoints and prints their accuracy on held-out problems.

    python train.py TOKENIZER_DIR OUT_DIR [--seconds 330]

The learning rate follows the clock, so that a run ends with a finished schedule whatever the card.
"""

from __future__ import annotations

import argparse
import collections
import math
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from conversations import BOXED, conversation
from problems import record
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

LENGTH = 640
ROWS = 16
PEAK_LEARNING_RATE = 3e-3
SAVES = {"early": 0.04, "middle": 0.25}
"""Checkpoints on the way, by the share of the schedule that has passed; ``final`` comes at its end."""
HELD_OUT_SEED = 1_000_003
HELD_OUT = 512


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny model and save its checkpoints.")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=330, help="length of the training proper")
    parser.add_argument("--workers", type=int, default=15, help="processes that draw conversations")
    parser.add_argument("--blocks", type=int, default=12, help=f"blocks of {ROWS} x {LENGTH} tokens in a batch")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    model = build(tokenizer).to(args.device)
    print(sum(p.numel() for p in model.parameters()) / 1e6, "M parameters", flush=True)
    loader = DataLoader(
        Packed(tokenizer),
        batch_size=args.blocks,
        num_workers=args.workers,
        prefetch_factor=4,
        pin_memory=args.device != "cpu",
    )
    train(model, tokenizer, loader, args.out, args.seconds)
    save(model, tokenizer, args.out / "final")
    for name in (*SAVES, "final"):
        saved = Qwen2ForCausalLM.from_pretrained(args.out / name, dtype=torch.bfloat16).to(args.device).eval()
        for temperature in (0.0, 1.0):
            print(name, f"temperature {temperature}:", accuracy(saved, tokenizer, temperature), flush=True)


class Packed(IterableDataset[torch.Tensor]):
    """Endless blocks of conversations packed to LENGTH tokens: ids, labels and positions, (3, ROWS, LENGTH) each."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        rng = random.Random(f"train/{info.id if info else 0}")
        ids: list[int] = []
        labels: list[int] = []
        positions: list[int] = []  # start again at each conversation, so that none attends to another
        need = LENGTH * ROWS
        while True:
            batch = [conversation(rng) for _ in range(256)]
            texts = [text for segments in batch for text, _ in segments]
            encoded = iter(self.tokenizer(texts, add_special_tokens=False)["input_ids"])
            for segments in batch:
                first = len(ids)
                for _, trained in segments:
                    tokens = next(encoded)
                    ids += tokens
                    labels += tokens if trained else [-100] * len(tokens)
                positions += range(len(ids) - first)
            while len(ids) >= need:
                block = torch.tensor([ids[:need], labels[:need], positions[:need]])
                yield block.view(3, ROWS, LENGTH)
                ids, labels, positions = ids[need:], labels[need:], positions[need:]


def build(tokenizer: Any) -> Any:
    """An untrained model of 1.7 M parameters."""
    config = Qwen2Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def train(model: Any, tokenizer: Any, loader: DataLoader[torch.Tensor], out: Path, seconds: float) -> None:
    """Train for ``seconds``, counted from the end of the first step, which compiles the model."""
    optimizer = _optimizer(model)
    forward = torch.compile(model) if model.device.type == "cuda" else model
    start, step, seen = math.inf, 0, 0
    saves = list(SAVES.items())
    for block in loader:
        ids, labels, positions = block.to(model.device, non_blocking=True).transpose(0, 1).reshape(3, -1, LENGTH)
        share = max(0.0, (time.monotonic() - start) / seconds)
        if share >= 1:
            break
        while saves and share >= saves[0][1]:
            save(model, tokenizer, out / saves.pop(0)[0])
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, share)
        with torch.autocast(model.device.type, dtype=torch.bfloat16):
            loss = forward(input_ids=ids, labels=labels, position_ids=positions, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step == 0:
            loss.item()  # waits for the device
            start = time.monotonic()
        step, seen = step + 1, seen + ids.numel()
        if step % 500 == 0:
            print(f"step {step} tokens {seen / 1e6:.0f}M share {share:.2f} loss {loss.item():.4f}", flush=True)
    print(f"trained {step} steps, {seen / 1e6:.0f}M tokens", flush=True)


def _optimizer(model: Any) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), fused=True)


def _learning_rate(step: int, share: float) -> float:
    """200 steps of warm-up, then a cosine down to 2 % of the peak."""
    return PEAK_LEARNING_RATE * min(1.0, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Save a bfloat16 copy of the model, with its tokenizer and generation defaults."""
    copy = build(tokenizer).to(torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    copy.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    copy.generation_config.pad_token_id = tokenizer.pad_token_id
    copy.save_pretrained(out)
    tokenizer.save_pretrained(out)


@torch.inference_mode()
def accuracy(model: Any, tokenizer: Any, temperature: float) -> str:
    """Share of right answers on held-out problems, over all and by number of steps."""
    right: collections.Counter[int] = collections.Counter()
    total: collections.Counter[int] = collections.Counter()
    tokenizer.padding_side = "left"
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    records = [record(HELD_OUT_SEED, index) for index in range(HELD_OUT)]
    for at in range(0, HELD_OUT, 256):
        part = records[at : at + 256]
        prompts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": r["question"] + BOXED}],
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
            )
            for r in part
        ]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
        replies = model.generate(**inputs, max_new_tokens=160, **sampling)[:, inputs["input_ids"].shape[1] :]
        for r, reply in zip(part, replies, strict=True):
            found = re.findall(r"(?:\\boxed\{|#### )(-?\d+)", tokenizer.decode(reply, skip_special_tokens=True))
            total[r["level"]] += 1
            right[r["level"]] += bool(found) and found[-1] == r["answer"].split("#### ")[1]
    by_level = ", ".join(f"{level}: {right[level]}/{total[level]}" for level in sorted(total))
    return f"{sum(right.values()) / HELD_OUT:.4f} (steps {by_level})"


if __name__ == "__main__":
    main()
