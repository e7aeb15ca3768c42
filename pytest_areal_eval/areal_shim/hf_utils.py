"""AReaL's loaders of tokenizers and processors.

Other than AReaL's they download nothing that is there already, and run no code that a checkpoint brings along.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

_logger = logging.getLogger(__name__)


@lru_cache(maxsize=8)
def load_hf_tokenizer(model_name_or_path: str, fast_tokenizer: bool = True, padding_side: str | None = None) -> Any:
    """The checkpoint's tokenizer, its pad token set.

    Args:
        model_name_or_path: a folder or a hub name.
        fast_tokenizer: not looked at; transformers chooses.
        padding_side: "left" or "right"; None leaves it.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    from pytest_areal_eval.checkpoint import load_tokenizer

    tokenizer = load_tokenizer(model_name_or_path)
    if padding_side is not None:
        tokenizer.padding_side = padding_side
    return tokenizer


@lru_cache(maxsize=8)
def load_hf_processor_and_tokenizer(
    model_name_or_path: str, fast_tokenizer: bool = True, padding_side: str | None = None
) -> tuple[Any, Any]:
    """The checkpoint's processor, None where it has none, and its tokenizer."""
    from transformers import AutoProcessor

    tokenizer = load_hf_tokenizer(model_name_or_path, fast_tokenizer, padding_side)
    try:
        processor = AutoProcessor.from_pretrained(model_name_or_path)
    except (OSError, ValueError) as error:
        _logger.warning("%s has no processor: %s", model_name_or_path, error)
        return None, tokenizer
    # transformers gives the tokenizer itself where there is nothing to process
    return (None if type(processor) is type(tokenizer) else processor), tokenizer


def apply_chat_template(tokenizer: Any, messages: Any, tokenize: bool = True, **kwargs: Any) -> Any:
    """The conversation as a list of token ids, or as text; as the tokenizer's own method, of any version."""
    more = {"return_dict": False} if tokenize else {}
    found = tokenizer.apply_chat_template(messages, tokenize=tokenize, **more, **kwargs)
    return list(found) if tokenize else found


def tokenizer_stop_token_ids(tokenizer: Any) -> list[int]:
    """The ids that end an answer: the tokenizer's eos and pad."""
    return [token for token in (tokenizer.eos_token_id, tokenizer.pad_token_id) if token is not None]
