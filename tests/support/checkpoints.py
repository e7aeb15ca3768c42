"""Checkpoints for tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

TINY_MATH = Path(__file__).parents[2] / "models/tiny-math"


def changed(path: Path) -> Path:
    """The shipped checkpoint with other weights and nothing else different: each embedding stands one place further."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(TINY_MATH, path)
    weights = load_file(path / "model.safetensors")
    name = "model.embed_tokens.weight"
    weights[name] = weights[name].roll(1, 0).contiguous()
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def untied(path: Path, source: Path = TINY_MATH) -> Path:
    """The same model as ``source``, with its output layer as a weight of its own."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, path)
    weights = load_file(path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return path
