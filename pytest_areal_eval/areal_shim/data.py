"""What AReaL's workflows do to their pictures before they ask, and to their tensors before they return them."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any


def concat_padded_tensors(tensor_dicts: Sequence[Mapping[str, Any]], pad_value: float = 0.0) -> dict[str, Any]:
    """One dict of tensors, the dicts' batches one after the other.

    Args:
        tensor_dicts: of the same keys; tensors of shape [batch] or [batch, length, ...], or lists; texts are left out.
        pad_value: fills the rows that are shorter than the longest; 0 in ``attention_mask``.

    Raises:
        ValueError: the dicts have different keys.
    """
    import torch

    if not tensor_dicts:
        return {}
    for index, found in enumerate(tensor_dicts):
        if found.keys() != tensor_dicts[0].keys():
            raise ValueError(
                f"dict[{index}] has different keys than dict[0]: {sorted(found)}, {sorted(tensor_dicts[0])}"
            )
    together: dict[str, Any] = {}
    for key, first in tensor_dicts[0].items():
        values = [found[key] for found in tensor_dicts]
        if isinstance(first, str):  # what a grader compared
            continue
        if isinstance(first, list):
            together[key] = [inner for value in values for inner in value]
            continue
        longest = max((value.shape[1] for value in values if value.dim() > 1), default=0)
        fill = 0 if key == "attention_mask" else pad_value
        together[key] = torch.cat([_padded(value, longest, fill) for value in values])
    return together


def image2base64(images: Any) -> list[str]:
    """Pictures as a request's ``image_data``: base64 of encoded bytes as they are, and of PIL images as PNG.

    Args:
        images: one, or a list.
    """
    return [_base64(image) for image in (images if isinstance(images, list | tuple) else [images])]


def _base64(image: Any) -> str:
    if isinstance(image, bytes):
        return base64.b64encode(image).decode()
    encoded = io.BytesIO()
    image.save(encoded, format="PNG")
    return base64.b64encode(encoded.getvalue()).decode()


def _padded(value: Any, longest: int, fill: float) -> Any:
    import torch

    if value.dim() < 2 or value.shape[1] == longest:
        return value
    gap = (value.shape[0], longest - value.shape[1], *value.shape[2:])
    return torch.cat([value, torch.full(gap, fill, dtype=value.dtype)], dim=1)
