"""What must be known of a checkpoint before anything starts: that it is there, its tokenizer, its context length."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_areal_eval.errors import CheckpointError, ConfigError

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
HUB_TIMEOUT_S = 10.0
SAID_LIMIT = 300
"""Characters of a library's own message."""
BESIDE_WEIGHTS = ("*.json", "*.jinja", "*.py", "*.model", "merges.txt", "vocab.txt")
"""What a server reads beside the weights."""
OF_TRAINING = ("*.index.json", "trainer_state.json", "training_args.json", "scheduler*.json", "optimizer*.json")
"""Among those, what it does not read, or what follows from the weights."""
WRITTEN_BY = ("_name_or_path", "transformers_version")
"""Keys of config.json that change no answer."""
AGAIN = "Copy it anew from where the checkpoint was saved: the file may be cut short."
_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
"""What transformers says of a long prompt once, by tokenizer_config.json; the server's own limit is what counts."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as the user named it.

    Attributes:
        path: a directory, or a hub name.
        name: short name for ids and headers.
        local: whether ``path`` is a directory here.
        context_length: from its config.json; None where it is not here or does not tell.
        generation_defaults: its generation_config.json, which this product overrides explicitly.
    """

    path: str
    name: str
    local: bool
    context_length: int | None = None
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)


def inspect_checkpoint(path: str) -> Checkpoint:
    """Look at a checkpoint without importing anything heavy.

    Raises:
        CheckpointError: the directory is not there, is empty, has no config.json or no weights.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        if is_hub_name(path):
            return Checkpoint(path=path, name=path.rsplit("/", 1)[-1], local=False)
        raise CheckpointError(f"--model={path}: no such directory", _near(folder))
    if not folder.is_dir():
        raise CheckpointError(f"--model={path}: not a directory", "Give the folder that holds config.json.")
    config = _json(folder / "config.json", path)
    if not any(next(folder.glob(pattern), None) for pattern in WEIGHTS):
        looked = f"--model={path}: no weights there (looked for {', '.join(WEIGHTS)})"
        raise CheckpointError(looked, "Give the folder that save_pretrained wrote, once it is there as a whole.")
    text = _text(config)
    length = next((text[key] for key in CONTEXT_KEYS if type(text.get(key)) is int and text[key] > 0), None)
    defaults = folder / "generation_config.json"
    return Checkpoint(
        path=str(folder.resolve()),
        name=folder.resolve().name,
        local=True,
        context_length=length,
        generation_defaults=_json(defaults, path) if defaults.exists() else {},
    )


def same_form(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether two checkpoints differ in their weights alone, so that a server of one can load the other's."""
    return one.local and other.local and _form(Path(one.path)) == _form(Path(other.path))


def is_plain(path: str) -> bool:
    """Whether a checkpoint's config.json says that nothing is quantized and that embeddings are not tied."""
    config = _json(Path(path) / "config.json", path)
    return "quantization_config" not in config and _text(config).get("tie_word_embeddings", True) is False


def _form(folder: Path) -> dict[str, Any]:
    names = {file.name for pattern in BESIDE_WEIGHTS for file in folder.glob(pattern)}
    names -= {file.name for pattern in OF_TRAINING for file in folder.glob(pattern)}
    files: dict[str, Any] = {name: (folder / name).read_bytes() for name in names}
    for name in ("config.json", "generation_config.json"):
        if name in files:
            read = _json(folder / name, str(folder))
            files[name] = {key: value for key, value in read.items() if key not in WRITTEN_BY}
    return files | {"weights": [next(folder.glob(pattern), None) is not None for pattern in WEIGHTS]}


def load_tokenizer(path: str, *, trust_remote_code: bool = False, need_template: bool = False) -> Any:
    """The checkpoint's tokenizer; pad falls back to eos.

    Raises:
        CheckpointError: there is none, it cannot be read, the hub has no such model or cannot be reached, or it has no
            chat template that works although one is needed.
        ConfigError: transformers itself cannot be imported.
    """
    if is_hub_name(path):
        _find_on_hub(path)
    try:
        from transformers import AutoTokenizer
    except Exception as error:  # a library below it that does not fit it raises anything
        raise ConfigError(
            f"transformers, which reads tokenizers, cannot be imported: {error}",
            "See python -c 'from transformers import AutoTokenizer'; pip check names versions that do not fit.",
        ) from error
    hint = "Save the tokenizer beside the weights (tokenizer.save_pretrained)."
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a checkpoint's files make the library raise becomes one message
        said = " ".join(str(error).split())[:SAID_LIMIT] or type(error).__name__
        raise CheckpointError(f"--model={path}: no usable tokenizer: {said}", hint) from error
    if not tokenizer.encode("a", add_special_tokens=False):  # transformers makes an empty one where there are no files
        raise CheckpointError(f"--model={path}: no usable tokenizer: it has no words", hint)
    if need_template:
        _check_template(tokenizer, path)
    getattr(tokenizer, "deprecation_warnings", {})[_TOO_LONG] = True
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= _vocabulary(path):
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _vocabulary(path: str) -> float:
    """How many tokens the model can say; a pad token that was added for training may be beyond, and as one that ends
    answers, which AReaL makes of it, a server refuses it."""
    file = Path(path) / "config.json"
    size = _text(_json(file, path)).get("vocab_size") if file.exists() else None
    return size if type(size) is int and size > 0 else math.inf


def _find_on_hub(name: str) -> None:
    """Ask for a model once; the libraries that download it would ask again for a minute where there is no network."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"--model={name}: no such folder, and the hub shows no such model",
            "Check its spelling; for a private one log in first (hf auth login).",
        ) from error
    except Exception as error:  # of whichever HTTP library the hub's client uses
        raise CheckpointError(
            f"--model={name}: no such folder, not in the hub's cache here, and the hub cannot be asked: {error}",
            f"Give a folder, or download it where there is a network: hf download {name}",
        ) from error


def _check_template(tokenizer: Any, path: str) -> None:
    import jinja2

    if not tokenizer.chat_template:
        raise CheckpointError(
            f"--model={path}: its tokenizer has no chat template",
            "Add chat_template.jinja to the checkpoint, or give get_input_ids_fn in workflow_kwargs.",
        )
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False, add_generation_prompt=True)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(
            f"--model={path}: its chat template is no template: line {error.lineno}: {error.message}",
            "Correct chat_template.jinja (or chat_template in tokenizer_config.json).",
        ) from error
    except Exception:  # of any kind, for want of arguments: an evaluation may give them, or its rows say so
        return


def is_hub_name(path: str) -> bool:
    """Whether a checkpoint's path is ``org/name``; where ``org`` is a folder here, a folder in it was meant."""
    parts = path.split("/")
    return len(parts) == 2 and all(parts) and not path.startswith((".", "~")) and not Path(parts[0]).is_dir()


def _json(file: Path, path: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        hint = "Give the folder that save_pretrained wrote."
        inside = sorted(str(found.parent) for found in file.parent.glob(f"*/{file.name}"))
        if inside:
            hint = f"There are checkpoints in it: {', '.join(inside[:8])}. Give one, several, or a pattern."
        raise CheckpointError(f"--model={path}: no {file.name} there", hint) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"--model={path}: {file.name} cannot be read: {error}", AGAIN) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"--model={path}: {file.name} holds no JSON object", AGAIN)
    return found


def _text(config: dict[str, Any]) -> dict[str, Any]:
    """A config's part about the language model, which is all of it where there is nothing else."""
    text = config.get("text_config")
    return text if isinstance(text, dict) and text else config


def _near(folder: Path) -> str:
    import difflib

    parent = folder.parent
    if not parent.is_dir():
        return f"{parent} does not exist either."
    names = sorted(p.name for p in parent.iterdir() if p.is_dir())
    close = difflib.get_close_matches(folder.name, names, n=1)
    return f"Did you mean {parent / close[0]}?" if close else f"{parent} holds: {', '.join(names[:8]) or 'nothing'}."
