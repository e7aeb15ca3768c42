"""Which requests go wrong, and how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FAULTS = ("status", "hang", "drop", "malformed", "empty", "null", "length", "think", "slow", "abort")


@dataclass
class Rule:
    """A fault for the requests whose prompt contains a text.

    Attributes:
        contains: the text; "" means every request.
        fault: one of :data:`FAULTS`: answer an HTTP ``status``; never answer; drop the connection; half a JSON body; an
            empty text; a null content; finish by length; an open ``<think>``; answer ``delay_s`` late; abort after
            the first tokens.
        status: for ``status``.
        retry_after: value of a Retry-After header, in seconds.
        times: how often it applies; None: for ever.
        delay_s: for ``slow``.
        hits: how often it has applied.
    """

    contains: str = ""
    fault: str = "status"
    status: int = 500
    retry_after: float | None = None
    times: int | None = None
    delay_s: float = 1.0
    hits: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.fault not in FAULTS:
            raise ValueError(f"unknown fault {self.fault!r}; there are {', '.join(FAULTS)}")

    def applies(self, prompt: str) -> bool:
        """Whether the request goes wrong; counts it."""
        if self.contains not in prompt or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


def rules_from(specs: Iterable[Mapping[str, Any]]) -> list[Rule]:
    """Rules from their JSON form, ``[{"contains": "Question 7", "fault": "status", "status": 500, "times": 1}]``."""
    return [Rule(**spec) for spec in specs]
