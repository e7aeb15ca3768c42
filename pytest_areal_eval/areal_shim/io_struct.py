"""AReaL's request: its answers always come with log-probabilities, of which workflows build tensors."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_areal_eval import api


@dataclass
class ModelRequest(api.ModelRequest):
    """One generation, as :class:`pytest_areal_eval.ModelRequest`; ``metadata={"logprobs": False}`` leaves them out."""

    def __post_init__(self) -> None:
        self.metadata = {"logprobs": True, **self.metadata}
