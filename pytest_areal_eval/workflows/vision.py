"""Vision: one question about pictures, one answer, one verifiable reward.

With a processor the request is AReaL's: token ids with their pictures for SGLang, the conversation with its pictures
for vLLM.  Without one the conversation is sent with the pictures in it, and the server processes both.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import importlib
import inspect
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import GenerationHyperparameters, InferenceEngine, ModelRequest, RolloutWorkflow
from pytest_areal_eval.datasets.prompts import messages_of
from pytest_areal_eval.engines.pictures import fill, is_place
from pytest_areal_eval.errors import DatasetError
from pytest_areal_eval.rewards.importing import import_from_string
from pytest_areal_eval.workflows.prompts import rendering
from pytest_areal_eval.workflows.rlvr import RLVRWorkflow

MARK = "<image>"
"""Where a picture stands in a text."""
PICTURES = ("images", "image")
"""Columns that hold them: a list, or one."""
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")

Messages = list[dict[str, Any]]


class VisionRLVRWorkflow(RolloutWorkflow):
    """Ask once about pictures, grade the answer.  Constructor, record and reward signature are AReaL's.

    A record has ``images`` (a list, or one ``image``): PIL images, encoded bytes, ``{"bytes": ...}`` as undecoded
    columns have them, files' paths, or ``data:`` URIs.  Its conversation is ``messages_chat`` or ``messages``, a list
    whose parts ``{"type": "image"}`` (or an ``image_url`` without a URL, or ``<image>`` in a text) are filled in order;
    without any such place the pictures come first in the last message.  A ``messages`` that is text has been through
    the chat template already and needs the processor.

    The request with a processor: ``input_ids`` of shape [prompt], each picture's placeholders included;
    ``image_data``, one base64 text a picture; ``vision_msg_vllm``, one conversation with a place a picture.

    Args:
        reward_fn: as :class:`RLVRWorkflow`'s, but called with ``prompt=``, ``completions=``, ``prompt_ids=`` and
            ``completion_ids=`` by name, as AReaL does; it gets the pictures only where it has a parameter for them.
        gconfig: how to sample; ``n_samples`` is the controller's business and ignored here.
        tokenizer: a tokenizer object or a checkpoint's path; None lets the server tokenize.
        processor: a processor object or a checkpoint's path; None lets the server process.
        enable_thinking: passed to the chat template when given.
        options: further arguments of :class:`RLVRWorkflow`: ``template_kwargs``, limits.

    Raises:
        DatasetError: of an episode: a picture cannot be read, the places do not match the pictures, or a templated
            text has no processor.
    """

    grades_in_pool = True

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: GenerationHyperparameters | Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        processor: Any = None,
        enable_thinking: bool | None = None,
        **options: Any,
    ) -> None:
        self.processor = load_processor(processor) if isinstance(processor, str) else processor
        if tokenizer is None and self.processor is not None:
            tokenizer = self.processor.tokenizer
        self._turn = RLVRWorkflow(reward_fn, gconfig, tokenizer, enable_thinking, **options)
        self._hidden = [name for name in PICTURES if not _names(reward_fn, name)]
        self._processing = threading.Lock()  # fast tokenizers refuse a second thread

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Any:
        """Ask, decode, grade.  Returns a :class:`~pytest_areal_eval.api.Score`."""
        request = await asyncio.to_thread(self.build_request, data)  # encoding takes a picture's 10 ms
        response = await engine.agenerate(request)
        columns = {name: value for name, value in data.items() if name not in self._hidden}
        return await self._turn.grade(request, response, columns, by_name=True)

    def build_request(self, data: Mapping[str, Any]) -> ModelRequest:
        """The record's request; see the class."""
        images = _pictures(data)
        encoded = [_base64(image, f"images[{n}]") for n, image in enumerate(images)]
        templated = data.get("messages") if isinstance(data.get("messages"), str) else None
        chat = None if templated is not None and not data.get("messages_chat") else _conversation(data, len(images))
        gconfig, template = self._turn.gconfig.new(n_samples=1), dict(self._turn.template_kwargs)
        if self.processor is None:
            if chat is None:
                raise DatasetError(
                    "messages is text that has been through a chat template, which a server would do again",
                    "Give the record messages_chat, a list of messages, or the workflow a processor.",
                )
            messages = fill(chat, encoded)
            return ModelRequest(messages=messages, gconfig=gconfig, template_kwargs=template, prompt_text=_shown(chat))
        text = templated if templated is not None else self._templated(chat or [])
        return ModelRequest(
            input_ids=self._ids(text, images),
            gconfig=gconfig,
            tokenizer=self._turn.tokenizer,
            processor=self.processor,
            image_data=encoded,
            vision_msg_vllm=None if chat is None else [fill(chat, [""] * len(images))],
            template_kwargs=template,
            prompt_text=text,
        )

    def _templated(self, chat: Messages) -> str:
        with self._processing, rendering():
            return str(
                self.processor.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=True, **self._turn.template_kwargs
                )
            )

    def _ids(self, text: str, images: Sequence[Any]) -> list[int]:
        """The prompt's ids, with as many placeholders for each picture as the model has patches."""
        opened = [_opened(image, f"images[{n}]") for n, image in enumerate(images)]
        with self._processing:
            ids = self.processor(images=opened or None, text=[text], padding=False)["input_ids"][0]
        return list(ids.tolist() if hasattr(ids, "tolist") else ids)


def load_processor(path: str) -> Any:
    """The checkpoint's processor through ``transformers``."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(path)


def _names(reward_fn: Callable[..., Any] | str, name: str) -> bool:
    function = import_from_string(reward_fn) if isinstance(reward_fn, str) else reward_fn
    return name in inspect.signature(function).parameters


def _pictures(data: Mapping[str, Any]) -> list[Any]:
    found: Any = next((data[name] for name in PICTURES if data.get(name) is not None), [])
    return list(found) if isinstance(found, list | tuple) else [found]


def _conversation(data: Mapping[str, Any], count: int) -> Messages:
    """The record's messages in parts, with a place for each picture.

    Raises:
        DatasetError: there are other than ``count`` places.
    """
    given = data.get("messages_chat") or messages_of(dict(data), None)
    messages: Messages = [dict(message) | {"content": _parts(message.get("content"))} for message in given]
    places = sum(is_place(part) for message in messages for part in message["content"])
    if places == 0 and count:
        messages[-1]["content"] = [{"type": "image"}] * count + messages[-1]["content"]
    elif places != count:
        raise DatasetError(
            f"the record has {count} images, and its messages have places for {places}",
            'A place is {"type": "image"} in a message\'s content, or <image> in its text.',
        )
    return messages


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        first, *rest = content.split(MARK)
        parts = [{"type": "text", "text": first}]
        for text in rest:
            parts += [{"type": "image"}, {"type": "text", "text": text}]
        return [part for part in parts if part.get("text") != ""]
    found = [dict(part) if isinstance(part, Mapping) else {"type": "text", "text": str(part)} for part in content or ()]
    return [{"type": "image"} if is_place(part) else part for part in found]


def _shown(chat: Messages) -> str:
    """The last message as text, for the journal."""
    return "".join(MARK if is_place(part) else str(part.get("text", "")) for part in chat[-1]["content"])


def _base64(image: Any, where: str) -> str:
    """A picture's encoded bytes as base64: PNG for one that is decoded, else as they are."""
    if isinstance(image, str) and image.startswith("data:"):
        head, _, body = image.partition(",")
        try:
            base64.b64decode(body, validate=True)
        except binascii.Error:
            head = ""
        if not head.endswith(";base64"):
            raise DatasetError(f"{where}: a data: URI that is no base64: {image[:60]}")
        return body
    return base64.b64encode(_bytes(image, where)).decode()


def _bytes(image: Any, where: str) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, Mapping) and image.get("bytes"):
        return bytes(image["bytes"])
    if isinstance(image, Mapping) and image.get("path"):
        image = image["path"]
    if isinstance(image, str | Path):
        try:
            return Path(image).expanduser().read_bytes()
        except OSError as error:
            raise DatasetError(f"{where}: {str(image)[:200]}: {error.strerror}", "Give a file that is there.") from None
    if hasattr(image, "save"):
        buffer = io.BytesIO()
        (image if getattr(image, "mode", "RGB") in _PNG_MODES else image.convert("RGB")).save(buffer, format="PNG")
        return buffer.getvalue()
    raise DatasetError(
        f"{where}: a {type(image).__name__} is no picture", "Give a PIL image, bytes, a file's path or a data: URI."
    )


def _opened(image: Any, where: str) -> Any:
    """The picture as processors take it."""
    if hasattr(image, "save"):
        return image
    pil: Any = importlib.import_module("PIL.Image")
    try:
        return pil.open(io.BytesIO(base64.b64decode(_base64(image, where)))).convert("RGB")
    except OSError as error:  # in no known format, or cut off
        raise DatasetError(f"{where}: {error}", "Give a picture in a format that PIL reads.") from None
