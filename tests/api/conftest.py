"""The control plane that these tests share: real, but with neither nodes nor scheduler."""

import re
import zlib
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.api.bench import Bench
from tests.api.client import Api
from tests.api.kubelet import Agents
from tests.api.plane import Plane


@pytest.fixture(scope="package")
def plane() -> Iterator[Plane]:
    """A control plane alone; torn down at the end."""
    running = Plane.up()
    try:
        yield running
    finally:
        running.cluster.down()


@pytest.fixture
async def api(plane: Plane) -> AsyncIterator[Api]:
    """The administrator's client."""
    async with Api.connect(plane.cluster) as connected:
        yield connected


@pytest.fixture
async def agents() -> AsyncIterator[Agents]:
    """The addresses of pods, and the agents that answer there."""
    async with Agents.serving() as serving:
        yield serving


@pytest.fixture
async def namespace(request: pytest.FixtureRequest, api: Api) -> str:
    """A namespace of the test's own."""
    test: str = request.node.name
    words = re.sub(r"[^a-z0-9]+", "-", test.lower().removeprefix("test_"))
    # Cut to a label, and told apart from others that begin alike.
    return await api.make_namespace(f"{words[:40].strip('-')}-{zlib.crc32(test.encode()):08x}")


@pytest.fixture
async def bench(plane: Plane, api: Api, agents: Agents) -> AsyncIterator[Bench]:
    """The operator's client, and records of all that happens."""
    async with Bench.of(plane, api, agents) as ready:
        yield ready
