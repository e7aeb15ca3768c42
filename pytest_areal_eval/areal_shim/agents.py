"""AReaL's names for what may be a workflow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class AgentWorkflow(ABC):
    """Base of older agents; any class with an async ``run`` will do."""

    @abstractmethod
    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float | dict[str, float]:
        """Run one episode.

        Args:
            data: the record.
            extra_kwargs: ``base_url``, ``api_key`` and ``http_client``.

        Returns:
            The reward, or a reward for each of some answers' ids.
        """


WorkflowLike = Any
"""A workflow or an agent: an object, a class or a dotted name."""
