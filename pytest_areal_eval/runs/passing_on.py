"""Once a run is written: its summary on the page of GitHub's runner, its scores to whoever implements the hook.

Invariant: the run is safe on disk before, and what fails here is said and changes no verdict about a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_areal_eval.report.export import GITHUB_SUMMARY
from pytest_areal_eval.report.outcome import report_of

if TYPE_CHECKING:
    import pytest

    from pytest_areal_eval.report.scoreboard import Row
    from pytest_areal_eval.runs.run import Run


def pass_on(config: pytest.Config, run: Run, rows: Sequence[Row]) -> list[str]:
    """Pass a finished run on.

    Returns:
        What could not be done, a line each.
    """
    assert run.folder is not None
    failed = []
    page = os.environ.get(GITHUB_SUMMARY)
    if page:
        try:
            _append_summary(Path(page), run.folder.path)
        except OSError as error:
            failed.append(f"${GITHUB_SUMMARY}: cannot write {page}: {error.strerror}")
    report = report_of(run.folder.path, run.info, rows, run.evaluations.settings.get("model", []))
    try:
        config.hook.pytest_areal_eval_report(config=config, report=report)
    except Exception as error:  # a tracker may raise anything: it is offline, or its disk is full
        failed.append(f"pytest_areal_eval_report: {type(error).__name__}: {error}")
    return failed


def _append_summary(page: Path, folder: Path) -> None:
    from pytest_areal_eval.report.export.markdown import markdown
    from pytest_areal_eval.report.saved import read_run

    with page.open("a", encoding="utf-8", errors="replace") as file:
        file.write(markdown(read_run(folder)))
