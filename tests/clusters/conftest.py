"""Real clusters on this machine; where none can be started their tests are skipped, and with CI set they fail."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import ray_cluster
import slurm_cluster
from arithmetic import SOME, evaluate, rewards
from support.sessions import Session

from pytest_areal_eval.schedulers.ray.scheduler import RayScheduler
from pytest_areal_eval.schedulers.slurm import jobs


@pytest.fixture(scope="session")
def slurm() -> Iterator[None]:
    """Slurm can be started here; a test's own fixture says of what shape."""
    need(slurm_cluster.missing())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "QUERY_PAUSE_S", 0.2)  # it is this cluster's only user
        patch.setenv("SLURM_CONF", str(slurm_cluster.FOLDER / "slurm.conf"))
        yield
    slurm_cluster.stop()


@pytest.fixture(scope="session")
def ray_cluster_address() -> Iterator[str]:
    """The address of a Ray cluster of three nodes."""
    need(ray_cluster.missing())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("RAY_ADDRESS", raising=False)
        yield ray_cluster.start()
    ray_cluster.stop()


@pytest.fixture
def address(ray_cluster_address: str) -> str:
    """Of the Ray cluster, with all its nodes: one that the test before has killed comes back."""
    return ray_cluster.start()


@pytest.fixture(scope="session")
def connected(ray_cluster_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayScheduler]:
    """A scheduler for all tests that leave the cluster whole: connecting takes 4 s."""
    one = ray_cluster.scheduler(tmp_path_factory.mktemp("connected"), ray_cluster_address, lease_s=ray_cluster.LEASE_S)
    yield one
    one.close()


@pytest.fixture(scope="session")
def rewards_here(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, float]:
    """What one local replica earns on some items of the shipped evaluation, greedily."""
    folder = tmp_path_factory.mktemp("local")
    done = evaluate("--backend=hf:d1", SOME, f"--results-dir={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    return rewards(folder)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session of pytest to be started; nothing of it outlives the test."""
    made = Session(tmp_path)
    yield made
    made.end()


def need(missing: str) -> None:
    """Skip for this reason, if there is one; a CI that cannot run the cluster tests has failed."""
    if missing and os.environ.get("CI"):
        pytest.fail(f"CI is set, so the cluster tests must run: {missing}", pytrace=False)
    if missing:
        pytest.skip(missing)
