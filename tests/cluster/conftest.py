"""The real cluster that these tests share: brought up once, and ended after the last of them."""

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster
from tests.tools import install


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Two real nodes with the chart installed; torn down at the end."""
    wheels = Path(os.environ.get("DDP_WHEELS", "../shared/wheels"))
    built = install.build_images(wheels)
    running = Cluster.up(2)
    try:
        install.load_images(running, built)
        # No relist within the run: what the tests count are the requests of a quiet operator.
        install.install_chart(running, {"operator.resyncSeconds": "86400"})
        yield running
    finally:
        running.down()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """A namespace of the test's own, with a shared claim."""
    test: str = request.node.name
    words = re.sub(r"[^a-z0-9]+", "-", test.lower().removeprefix("test_"))
    # Cut to a label, and told apart from others that begin alike.
    name = f"{words[:40].strip('-')}-{zlib.crc32(test.encode()):08x}"
    install.make_namespace(cluster, name)
    return name
