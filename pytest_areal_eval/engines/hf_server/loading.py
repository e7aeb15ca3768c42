"""A checkpoint to a model that is ready to decode.  Invariant: a checkpoint that lacks weights is refused, never
filled with random ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from pytest_areal_eval.checkpoint import is_hub_name
from pytest_areal_eval.engines.hf_server.decoders import Decoder, pick_decoder
from pytest_areal_eval.engines.hf_server.text import Decode
from pytest_areal_eval.errors import CheckpointError

SMALL_PARAMETERS = 100_000_000
"""Below this a forward's work hardly outweighs the threads' barriers.  With 1.7 M parameters on an idle machine, two
threads instead of one gave 12 % less at batch 8 (2,243 to 1,985 tokens/s) and 12 % more at batch 32; on a busy one
the barriers spin, and two threads lose far more."""


@dataclass(frozen=True)
class LoadedModel:
    """What the server serves.

    Attributes:
        path: where the checkpoint came from.
        tokenizer: transformers' tokenizer.
        decode: token ids to text.
        decoder: runs the model.
        decoder_note: why the decoder is not the batched one, or empty.
        context_length: prompt and answer together, in tokens.
        vocab_size: rows of the embedding.
        eos_ids: tokens that end an answer, of the generation config and of the tokenizer.
        dtype: of the weights.
        device: where they are.
        threads: CPU threads of one forward.
    """

    path: str
    tokenizer: Any
    decode: Decode
    decoder: Decoder
    decoder_note: str
    context_length: int
    vocab_size: int
    eos_ids: frozenset[int]
    dtype: str
    device: str
    threads: int


def load(
    path: str,
    *,
    dtype: str,
    rows: int,
    context_length: int | None,
    trust_remote_code: bool,
    threads: int | None,
    tokenizer: str | None = None,
) -> LoadedModel:
    """Load a checkpoint and try its decoder out.

    Args:
        path: directory or hub name.
        dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto``: float32 on a CPU (greedy answers then do not
            depend on the batch), the checkpoint's own on a GPU.
        rows: most sequences at once.
        context_length: limit in tokens; None for the checkpoint's own.
        trust_remote_code: run the checkpoint's own code.
        threads: CPU threads of one forward; None chooses by the model's size, unless OMP_NUM_THREADS is set.
        tokenizer: directory or hub name of the tokenizer; None: the checkpoint's own.

    Raises:
        CheckpointError: it cannot be served; one short paragraph says why.
    """
    if os.sep in path and not Path(path).is_dir() and not is_hub_name(path):
        raise CheckpointError(f"no directory {path}", "Give --model a checkpoint's directory or a hub name.")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        words = transformers.AutoTokenizer.from_pretrained(tokenizer or path, trust_remote_code=trust_remote_code)
        model = _weights(path, _dtype(dtype, device), trust_remote_code).to(device).eval()
        context = _context_length(model.config.get_text_config(), context_length)
        threads = _use_threads(threads, model.num_parameters())
        with torch.inference_mode():
            decoder, note = pick_decoder(model, rows, context)
    except CheckpointError:
        raise
    except Exception as e:  # whatever a checkpoint's files make the libraries raise becomes one message
        reason = next((line for line in str(e).splitlines() if line.strip()), "")
        raise CheckpointError(f"cannot serve the checkpoint {path}: {type(e).__name__}: {reason}") from e
    return LoadedModel(
        path=path,
        tokenizer=words,
        decode=_decode(words),
        decoder=decoder,
        decoder_note=note,
        context_length=context,
        vocab_size=model.get_input_embeddings().weight.shape[0],
        eos_ids=_eos_ids(model.generation_config, words),
        dtype=str(model.dtype).removeprefix("torch."),
        device=device,
        threads=threads,
    )


def _weights(path: str, dtype: Any, trust_remote_code: bool) -> Any:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, trust_remote_code=trust_remote_code, output_loading_info=True
    )
    if missing := sorted(info["missing_keys"]):
        raise CheckpointError(
            f"the checkpoint {path} lacks {len(missing)} weights, the first of them {missing[0]}",
            "Was it saved whole?  Sharded and adapter-only checkpoints must be merged first.",
        )
    return model


def _dtype(name: str, device: str) -> Any:
    if name != "auto":
        return getattr(torch, name)
    return torch.float32 if device == "cpu" else "auto"


def _context_length(config: Any, wanted: int | None) -> int:
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    own = next((value for name in names if (value := getattr(config, name, None)) and value > 0), None)
    if wanted and own and wanted > own:
        raise CheckpointError(
            f"--context-length {wanted} is more than the checkpoint's own {own} positions",
            f"Give --context-length at most {own}.",
        )
    return int(wanted or own or 4096)


def _use_threads(wanted: int | None, parameters: int) -> int:
    if wanted is None and not os.environ.get("OMP_NUM_THREADS"):
        wanted = 1 if parameters < SMALL_PARAMETERS else len(os.sched_getaffinity(0))
    if wanted is not None:
        torch.set_num_threads(wanted)
    return torch.get_num_threads()


def _eos_ids(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    ids = getattr(generation_config, "eos_token_id", None)
    listed = ids if isinstance(ids, list) else [ids]
    return frozenset(i for i in (*listed, tokenizer.eos_token_id) if i is not None)


def _decode(tokenizer: Any) -> Decode:
    """The tokenizer's decoding; a fast one's backend directly, which costs a tenth (5 instead of 50 µs a call)."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return lambda ids, skip: str(backend.decode(ids, skip_special_tokens=skip))
    return lambda ids, skip: str(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))
