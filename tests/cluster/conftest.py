"""Fixtures for tests on one real two-node cluster, which all of them share."""

import os
import re
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.harness import diagnosis, install
from tests.harness.cluster import Cluster

LAST = "test_rights.py"
"""File whose test reads the requests of all other tests of this folder."""


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Yield two real nodes with the chart installed, and stop them after the last test."""
    wheels = Path(os.environ.get("DDP_WHEELS", "../shared/wheels"))
    built = install.build_images(wheels)
    running = Cluster.up(2)
    try:
        install.load_images(running, built)
        # A relist would add requests, and tests count the requests of an idle operator.
        values = {"operator.resyncSeconds": "86400", "workers.hostPorts": "28200-29199"}
        install.install_chart(running, values)
        yield running
    finally:
        running.down()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """Yield the name of a new namespace with a shared claim, and delete its jobs after the test."""
    test: str = request.node.name
    words = re.sub(r"[^a-z0-9]+", "-", test.lower().removeprefix("test_"))
    # A label has at most 63 characters. The checksum keeps names with the same start distinct.
    name = f"{words[:40].strip('-')}-{zlib.crc32(test.encode()):08x}"
    install.create_namespace(cluster, name)
    yield name
    # A job that still trained would take CPU time from the next test.
    delete = ("delete", "ddpjobs", "--all", "--wait=false")
    cluster.kubectl("-n", name, *delete, check=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the test of the operator's rights after all others of this folder."""
    here = Path(__file__).parent
    places = [index for index, item in enumerate(items) if item.path.parent == here]
    ordered = sorted((items[i] for i in places), key=lambda item: item.path.name == LAST)
    for index, item in zip(places, ordered, strict=True):
        items[index] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the cluster to the report of a failed test."""
    return diagnosis.add_to_failure((yield), item)
