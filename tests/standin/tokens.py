"""A tokenizer of bytes: the least that the chat path needs, with nothing to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EOS, PAD = 256, 257


class ByteTokenizer:
    """One token a byte; ``<|im_start|>`` chat as text."""

    eos_token_id = EOS
    pad_token_id = PAD

    def encode(self, text: str) -> list[int]:
        """The bytes."""
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text; special tokens have none."""
        return bytes(i for i in ids if i < EOS).decode(errors="replace")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = False,
        **template_kwargs: Any,
    ) -> Any:
        """``<user>…</user><assistant>``, and an open ``<think>`` if ``enable_thinking`` says so."""
        text = "".join(f"<{m['role']}>{m['content']}</{m['role']}>\n" for m in messages)
        if add_generation_prompt:
            text += "<assistant>" + ("<think>\n" if template_kwargs.get("enable_thinking") else "")
        return self.encode(text) if tokenize else text
