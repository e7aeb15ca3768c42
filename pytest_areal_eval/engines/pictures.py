"""Pictures: beside token ids for SGLang, in messages for vLLM and all others, as AReaL sends them.

In messages they are ``image_url`` parts with ``data:`` URIs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_areal_eval.api import ModelRequest
from pytest_areal_eval.engines.answers import parse_chat, parse_generate
from pytest_areal_eval.engines.base import EngineInfo
from pytest_areal_eval.engines.wire import Form, chat_body, generate_body
from pytest_areal_eval.errors import RequestError

_FORMATS = {"iVBOR": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp", "Qk": "image/bmp"}
"""How each format's first bytes look in base64."""


def pictured_generate_body(request: ModelRequest, info: EngineInfo) -> dict[str, Any]:
    """Ids with a placeholder for each of an image's patches, and the images in base64, in order."""
    return generate_body(request, info) | {"image_data": request.image_data}


def pictured_chat_body(request: ModelRequest, info: EngineInfo) -> dict[str, Any]:
    """The conversation of ``vision_msg_vllm`` with the images in it; vLLM takes none beside ids.

    Raises:
        RequestError: there is no conversation, or its places do not match the images.
    """
    if not request.vision_msg_vllm:
        raise RequestError(
            "vLLM takes images in messages, and the request has none",
            hint="Set vision_msg_vllm=[messages]; VisionRLVRWorkflow does, where a record has messages_chat.",
        )
    return chat_body(replace(request, messages=fill(request.vision_msg_vllm[0], request.image_data)), info)


def is_place(part: Any) -> bool:
    """Whether a part of a message stands for a picture that is given apart."""
    if not isinstance(part, Mapping):
        return False
    if part.get("type") == "image":
        return not part.get("image")
    url = part.get("image_url")
    return part.get("type") == "image_url" and not (url.get("url") if isinstance(url, Mapping) else url)


def fill(messages: Sequence[Mapping[str, Any]], images: Sequence[str]) -> list[dict[str, Any]]:
    """The messages with the pictures in their places, in order; what is given stays as it is.

    Args:
        messages: a conversation; contents are texts or lists of parts.
        images: base64 texts; an empty one leaves its place empty.

    Raises:
        RequestError: there are more or fewer places than pictures.
    """
    left, filled = list(images), []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = [_part(left) if is_place(part) else part for part in content]
        filled.append(dict(message) | {"content": content})
    if left:
        raise RequestError(f"the messages have places for {len(images) - len(left)} of {len(images)} images")
    return filled


def _part(left: list[str]) -> dict[str, Any]:
    if not left:
        raise RequestError("the messages have more places for images than there are images")
    return {"type": "image_url", "image_url": {"url": _uri(left.pop(0))}}


def _uri(image: str) -> str:
    if not image:
        return ""
    kind = next((kind for head, kind in _FORMATS.items() if image.startswith(head)), "image/png")
    return f"data:{kind};base64,{image}"


PICTURED_GENERATE = Form("/generate", pictured_generate_body, parse_generate)
PICTURED_CHAT = Form("/v1/chat/completions", pictured_chat_body, parse_chat)
