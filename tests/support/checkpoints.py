"""Checkpoints for tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

TINY_MATH = Path(__file__).parents[2] / "models/tiny-math"
PICTURED_TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{%- if m['content'] is string %}{{ m['content'] }}"
    "{%- else %}{%- for p in m['content'] %}{{ p['text'] if p['type'] == 'text' else '<image>' }}{%- endfor %}"
    "{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
PICTURES = {
    "image_processor_type": "CLIPImageProcessor",
    "processor_class": "LlavaProcessor",
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 28, "width": 28},
    "do_resize": True,
    "do_center_crop": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_convert_rgb": True,
}
PICTURED = {
    "processor_class": "LlavaProcessor",
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "image_token": "<image>",
    "num_additional_image_tokens": 1,
}


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


def seeing(path: Path) -> Path:
    """The shipped checkpoint with LLaVA's eyes, random but not blind.  A picture takes four places in the prompt."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoTokenizer, CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(TINY_MATH)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    text = AutoConfig.from_pretrained(TINY_MATH)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=28, patch_size=14, projection_dim=32, **sizes),
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    text.tie_word_embeddings = False
    torch.manual_seed(0)
    LlavaForConditionalGeneration(config).save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    # As LLaVA's checkpoints have it; transformers 5 leaves the middle out.
    weights = {name.replace("vision_tower.", "vision_tower.vision_model."): tensor for name, tensor in weights.items()}
    weights["multi_modal_projector.linear_2.weight"] *= 100  # else no answer depends on what they see
    shipped = load_file(TINY_MATH / "model.safetensors")
    weights |= {f"language_model.{name}": tensor for name, tensor in shipped.items()}
    weights["language_model.lm_head.weight"] = shipped["model.embed_tokens.weight"].clone()
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    tokenizer.chat_template = PICTURED_TEMPLATE
    tokenizer.save_pretrained(path)
    (path / "preprocessor_config.json").write_text(json.dumps(PICTURES))
    (path / "processor_config.json").write_text(json.dumps(PICTURED))
    return path
