"""Real clusters on this machine; where none can be started their tests are skipped, and with CI set they fail."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import ray_cluster
import slurm_cluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[None]:
    """Slurm can be started here; a test's own fixture says of what shape."""
    need(slurm_cluster.missing())
    with pytest.MonkeyPatch.context() as patch:
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


def need(missing: str) -> None:
    """Skip for this reason, if there is one; a CI that cannot run the cluster tests has failed."""
    if missing and os.environ.get("CI"):
        pytest.fail(f"CI is set, so the cluster tests must run: {missing}", pytrace=False)
    if missing:
        pytest.skip(missing)
