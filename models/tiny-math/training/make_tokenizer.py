"""Trains the byte-level BPE tokenizer of the tiny model and saves it with its chat template.

python make_tokenizer.py OUT_DIR
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from conversations import conversation
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VISIBLE = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
TEMPLATE = Path(__file__).parents[1] / "chat_template.jinja"
SAMPLES = 40_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tokenizer and save it in Hugging Face's format.")
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_train(random.Random(0)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE.read_text()
    tokenizer.save_pretrained(out)
    print(len(tokenizer), "tokens")


def _train(rng: random.Random) -> Tokenizer:
    """Digits stand alone, so that numbers are read digit by digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024 - len(VISIBLE),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ("".join(text for text, _ in conversation(rng)) for _ in range(SAMPLES))
    plain = (text.replace("<|im_start|>", "\n").replace("<|im_end|>", "\n") for text in texts)
    tokenizer.train_from_iterator(plain, trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in VISIBLE])
    return tokenizer


if __name__ == "__main__":
    main()
