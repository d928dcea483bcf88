"""A real cluster of four nodes, for jobs that lose several of them."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.harness import diagnosis, install
from tests.harness.cluster import Cluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Yield four real nodes with the chart installed, and stop them after the last test."""
    built = install.build_images(Path(os.environ.get("DDP_WHEELS", "../shared/wheels")))
    running = Cluster.up(4)
    try:
        install.load_images(running, built)
        install.install_chart(running)
        yield running
    finally:
        running.down()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Yield the name of a namespace with a shared claim, and delete its jobs after the test."""
    install.create_namespace(cluster, "four-nodes")
    yield "four-nodes"
    cluster.kubectl("-n", "four-nodes", "delete", "ddpjobs", "--all", check=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the cluster to the report of a failed test."""
    return diagnosis.add_to_failure((yield), item)
