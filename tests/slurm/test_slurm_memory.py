"""A job that needs more memory than it was given, on a cluster whose control groups limit it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.conftest import Kernel
from tools import slurm_cluster
from tools.slurm_cluster import Cluster

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of this module."""
    if reason := slurm_cluster.missing_reason():
        pytest.skip(reason)
    if not slurm_cluster.can_limit():
        pytest.skip("needs root: control groups of version 1 that limit memory")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), min_job_age=60, limits_memory=True)
    yield cluster
    cluster.stop()


def test_job_over_its_memory_fails_with_its_limit_and_the_flag(kernel: Kernel) -> None:
    code = "x = bytearray(600 << 20)\nfor i in range(0, len(x), 4096):\n    x[i] = 1"
    run = kernel.submit(code, memory="200M", name="large")
    record = kernel.ended(run)
    assert record.state == "failed" and "200.0 MiB" in record.error and "--mem" in record.error
