"""Attaches the evaluations of this folder to a server that runs already, and tells what this process needed."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The benchmark's own options."""
    parser.addoption("--server", help="address of the fake server")
    parser.addoption("--tokenizer", help="checkpoint folder whose tokenizer and template are used; none: messages")
    parser.addoption("--in-flight", type=int, default=64)
    parser.addoption("--rows", type=int, default=500, help="tests of the bare suite")
    parser.addoption("--costs", type=Path, help="JSON file for what this process needed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The bare suite's tests, as many as the evaluation has items."""
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(metafunc.config.getoption("--rows")))


@pytest.fixture(scope="session")
def controller(pytestconfig: pytest.Config) -> Iterator[object]:
    """A controller of the embedded engine's protocol, attached to the fake server."""
    from pytest_areal_eval.controller import ControllerSettings, RolloutController
    from pytest_areal_eval.engines.base import Endpoint
    from pytest_areal_eval.engines.hf import HFEngine

    path = pytestconfig.getoption("--tokenizer")
    made = RolloutController(
        HFEngine("fake"),
        settings=ControllerSettings(max_concurrency=pytestconfig.getoption("--in-flight")),
        tokenizer=None if path is None else lambda: load(path),
    )
    made.initialize(server_infos=[Endpoint("fake/0", pytestconfig.getoption("--server"))])
    yield made
    made.destroy()


def load(path: str) -> object:
    """The checkpoint's tokenizer."""
    from pytest_areal_eval.checkpoint import load_tokenizer

    return load_tokenizer(path, need_template=True)


def pytest_runtest_call(item: pytest.Item) -> None:
    """Note when the first test's body began."""
    item.config.stash.setdefault(BEGAN, time.monotonic())


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Write this process's peak of memory, and when its first test began."""
    path = config.getoption("--costs", None)
    if path is None:
        return
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path.write_text(json.dumps({"rss_kb": peak_kb, "began": config.stash.get(BEGAN, None)}))
