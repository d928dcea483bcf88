"""Fixtures for tests on a real control plane without nodes and without a scheduler."""

import re
import zlib
from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from tests.api.client import Api
from tests.api.control_plane import ControlPlane
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.kubelet import FakeAgents
from tests.harness import diagnosis


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """Yield a control plane without nodes, and stop it after the last test."""
    running = ControlPlane.up()
    try:
        yield running
    finally:
        running.cluster.down()


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    """Yield the administrator's client."""
    async with Api.connect(control_plane.cluster) as connected:
        yield connected


@pytest.fixture
async def agents() -> AsyncIterator[FakeAgents]:
    """Yield fake agents that answer at the addresses of pods."""
    async with FakeAgents.serving() as serving:
        yield serving


@pytest.fixture
async def namespace(request: pytest.FixtureRequest, api: Api) -> str:
    """Create a namespace for this test alone and return its name."""
    test: str = request.node.name
    words = re.sub(r"[^a-z0-9]+", "-", test.lower().removeprefix("test_"))
    # A label has at most 63 characters. The checksum keeps names with the same start distinct.
    return await api.create_namespace(f"{words[:40].strip('-')}-{zlib.crc32(test.encode()):08x}")


@pytest.fixture
async def environment(
    control_plane: ControlPlane, api: Api, agents: FakeAgents
) -> AsyncIterator[OperatorEnvironment]:
    """Yield the operator's client and recorders of all changes."""
    async with OperatorEnvironment.of(control_plane, api, agents) as ready:
        yield ready


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the cluster to the report of a failed test."""
    return diagnosis.add_to_failure((yield), item)
