"""Rendered prompts, kept for the other episodes of their item; rendering one costs as much as sending it.

Invariant: what is given out is the caller's own; a conversation of other than Python's plain values is rendered anew
each time, for two that differ could look alike.
"""

from __future__ import annotations

import contextlib
import marshal
import threading
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

from pytest_areal_eval.errors import PromptError
from pytest_areal_eval.workflows import context

SAID_LIMIT = 300
"""Characters of a template's own message."""
KEPT = 64
"""An item's episodes start one after the other, so few prompts serve all of them."""

T = TypeVar("T")


class Prompts:
    """The last conversations of a run as token ids, and the last prompts' ids as text."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, tuple[Any, list[int]]] = {}
        self._texts: dict[Hashable, tuple[Any, str]] = {}
        self._lock = threading.Lock()

    def ids(self, tokenizer: Any, messages: Any, template_kwargs: Mapping[str, Any]) -> list[int]:
        """Token ids of a conversation with the generation prompt; see :func:`chat_ids`."""
        asked: Any = messages, template_kwargs
        try:
            said = marshal.dumps(asked, 0)  # keeps types: 1 is no "1", and no True
        except ValueError:  # a tool given as a function has no other name than its address
            return chat_ids(tokenizer, messages, template_kwargs)
        ids = self._kept(self._ids, said, tokenizer, lambda: chat_ids(tokenizer, messages, template_kwargs))
        return list(ids)

    def text(self, tokenizer: Any, ids: list[int]) -> str:
        """What token ids say, special tokens included."""
        return self._kept(self._texts, array("q", ids).tobytes(), tokenizer, lambda: str(tokenizer.decode(ids)))

    def _kept(self, kept: dict[Hashable, tuple[Any, T]], key: Hashable, tokenizer: Any, make: Callable[[], T]) -> T:
        """What is kept of a tokenizer's under a key, else what ``make`` gives; the oldest goes."""
        found = kept.get((id(tokenizer), key))
        if found is None:
            found = tokenizer, make()  # with the tokenizer, so that no other gets its id
            with self._lock:
                kept[id(tokenizer), key] = found
                if len(kept) > KEPT:
                    del kept[next(iter(kept))]
        return found[1]


def chat_ids(tokenizer: Any, messages: Any, template_kwargs: Mapping[str, Any]) -> list[int]:
    """Token ids of a conversation with the generation prompt: one tokenization, no special token added twice."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    with rendering():
        ids = tokenizer.apply_chat_template(
            list(messages), tokenize=True, add_generation_prompt=True, return_dict=False, **template_kwargs
        )
    return list(ids)


@contextlib.contextmanager
def rendering() -> Iterator[None]:
    """Around a chat template: what it raises, of any kind, becomes one line that names the item.

    Raises:
        PromptError: it refuses the conversation, or fails over it.
    """
    try:
        yield
    except Exception as error:
        item = context.get().item_id
        said = " ".join(str(error).split())[:SAID_LIMIT]
        raise PromptError(
            f"{f'item {item!r}: ' if item else ''}the chat template fails over the messages: "
            f"{type(error).__name__}: {said}",
            "See chat_template.jinja and the roles and contents of the messages; template_kwargs are its arguments.",
        ) from error
