"""The other plugins of the tests' environment, which suites inside of tests do without: loading all takes seconds."""

from __future__ import annotations

OTHERS = (
    "anyio",
    "asyncio",
    "cov",
    "html",
    "html_fixtures",
    "hypothesispytest",
    "langsmith_plugin",
    "metadata",
    "randomly",
    "rerunfailures",
    "pytest-split",
    "timeout",
)


def without(*wanted: str) -> str:
    """Arguments that turn all off but the ones that are wanted."""
    return " ".join(f"-p no:{name}" for name in OTHERS if name not in wanted)
