"""What answers tell of a server that is not as it should be, and that no error tells: each is said once."""

from __future__ import annotations

from collections.abc import Callable

from pytest_areal_eval.api import ModelRequest, ModelResponse
from pytest_areal_eval.engines.base import EngineInfo


class Oddities:
    """Looks at every answer.

    Args:
        tell: receives a line for a person.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._served: dict[str, str] = {}
        self._told: set[tuple[str, str]] = set()

    def look(self, request: ModelRequest, response: ModelResponse, info: EngineInfo) -> None:
        """Compare an answer with what was asked, and with what its server said of itself before."""
        if info.sampling_note and request.gconfig.effective_temperature:
            self._once("sampling", "", info.sampling_note)
        before = self._served.setdefault(response.replica, response.served)
        if response.served != before:
            self._once(
                "served",
                response.replica,
                f"{response.replica} answered as {before or 'an unnamed model'} and then as "
                f"{response.served or 'an unnamed model'}: the scores are not of one model",
            )
        length, limit = response.output_len, request.gconfig.max_new_tokens
        if length > limit:
            self._once(
                "length", "", f"{response.replica} answered {length} tokens where at most {limit} were asked for"
            )
        if response.stop_reason == "length" and length < limit:
            self._once(
                "context",
                "",
                f"{response.replica} cut off an answer of {length} tokens to a prompt of {response.input_len}, before "
                f"max_new_tokens={limit}: its context, or a limit of its own, is shorter",
            )

    def forget(self) -> None:
        """The servers hold another checkpoint from now on."""
        self._served.clear()

    def _once(self, kind: str, replica: str, line: str) -> None:
        if (kind, replica) not in self._told:
            self._told.add((kind, replica))
            self._tell(line)
