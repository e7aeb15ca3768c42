"""An ``async def`` test as its own workflow: what it returns is the reward."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pytest_areal_eval.api import Score


class TestBodyWorkflow:
    """Runs a test function once an episode.

    Args:
        function: ``async def test(item, engine, ...)``.
        shared: further arguments, the same objects for every episode.
        strict: whether an assertion that holds means reward 1 where the function returns nothing.
        failures: what a failed assertion raises.
    """

    __test__ = False  # pytest shall not collect it

    def __init__(
        self,
        function: Callable[..., Any],
        shared: Mapping[str, Any],
        *,
        strict: bool,
        failures: tuple[type[BaseException], ...] = (AssertionError,),
    ) -> None:
        self.function = function
        self.strict = strict
        self._failures = failures
        self._arguments = set(inspect.signature(function).parameters)
        self._shared = dict(shared)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        """Call the test.  Returns its reward; a failed assertion of a strict test is reward 0."""
        own = {"item": data, "engine": engine}
        arguments = {name: value for name, value in (self._shared | own).items() if name in self._arguments}
        try:
            reward = await self.function(**arguments)
        except self._failures as error:
            if not self.strict:
                raise
            return Score(0.0, failure=_user_frames(error, self.function))
        return 1.0 if reward is None and self.strict else reward


def _user_frames(error: BaseException, function: Callable[..., Any]) -> str:
    """What failed, which pytest's summary shows, and the traceback from the test's own first frame on."""
    file = inspect.getsourcefile(inspect.unwrap(function))
    frames = traceback.extract_tb(error.__traceback__)
    first = next((n for n, frame in enumerate(frames) if frame.filename == file), 0)
    lines = traceback.format_exception_only(error) + traceback.format_list(frames[first:])
    return "".join(lines).rstrip()
