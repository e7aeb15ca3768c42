"""What the stand-ins see in a picture: the text that it is made of; and what they say of one that is none."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any


def said(content: Any) -> str:
    """A message's text, with what its pictures show."""
    if not isinstance(content, list):
        return str(content)
    return "".join(part["text"] if part.get("type") == "text" else shown(url_of(part)) for part in content)


def shown(image: str) -> str:
    """What a picture shows, of a ``data:`` URI or of bare base64."""
    return base64.b64decode(image.partition(",")[2] or image).decode(errors="replace")


def url_of(part: Mapping[str, Any]) -> str:
    """The URI of an ``image_url`` part."""
    return str((part.get("image_url") or {}).get("url"))


def problems(body: Mapping[str, Any]) -> Iterator[str]:
    """Why a request's pictures cannot be read; one that shows "broken" is in no known format."""
    parts = [p for m in body.get("messages", ()) if isinstance(m["content"], list) for p in m["content"]]
    urls = [url_of(part) for part in parts if part["type"] == "image_url"]
    yield from (f"Unknown part type: {part['type']}" for part in parts if part["type"] not in ("text", "image_url"))
    yield from ("The URL must be either a HTTP, data or file URL." for url in urls if not url.startswith("data:image/"))
    for image in (*urls, *(body.get("image_data") or ())):
        try:
            if "broken" in shown(image):
                yield "cannot identify image file"
        except binascii.Error:
            yield f"Invalid image: {image[:40]}"
