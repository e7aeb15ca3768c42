"""Why items went wrong, in a line each: what all of them say is told once, in the summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_areal_eval.api import GIVEN_UP, Episode

LONGEST = 300
_VARYING = re.compile(r"\d+")
"""Addresses, attempts and counts, in which errors differ that have one cause."""


def reason_of(episodes: Sequence[Episode]) -> str:
    """Why the first of an item's episodes that went wrong did, without the item's name; "" if none did."""
    wrong = (e for e in episodes if e.status.kind != "scored" and e.status not in GIVEN_UP)
    first = next(wrong, None)
    if first is None:
        return ""
    line = (first.error.splitlines() or [""])[0].replace(f"item {first.item_id!r}: ", "", 1)
    return line[:LONGEST]


def shared_reason(reasons: Mapping[str, str]) -> str:
    """What most items with an error say, if several do."""
    alike = Counter(_VARYING.sub("#", reason) for reason in reasons.values())
    ((key, count),) = alike.most_common(1) or [("", 0)]
    if count < 2 or 2 * count < len(reasons):
        return ""
    said = next(reason for reason in reasons.values() if _VARYING.sub("#", reason) == key)
    of = f"all {count}" if count == len(reasons) else f"{count} of {len(reasons)}"
    return f"{of} items with errors say the same: {said}" if said else ""
