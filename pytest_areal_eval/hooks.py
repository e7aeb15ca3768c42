"""The plugin's own hook: what a session found, for whoever passes it on.  A conftest implements it by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_areal_eval.report.outcome import RunReport


@pytest.hookspec()
def pytest_areal_eval_report(config: pytest.Config, report: RunReport) -> None:
    """A session with evaluations has ended, and its run is written.

    Called once, in the process that prints the table; not where nothing was scored, nor with ``--from-run``.

    Args:
        config: pytest's.
        report: the run's folder, its description, and each evaluation's summary.
    """
