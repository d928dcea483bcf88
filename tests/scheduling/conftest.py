"""Fixtures for jobs that a real scheduler places. Each module starts its own control plane."""

import re
import zlib
from collections.abc import AsyncIterator, Generator

import pytest

from tests.api.client import Api
from tests.api.control_plane import ControlPlane
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.kubelet import FakeAgents
from tests.harness import diagnosis
from tests.scheduling.stage import Stage


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """Return the name of this test's namespace."""
    test: str = request.node.name
    words = re.sub(r"[^a-z0-9]+", "-", test.lower().removeprefix("test_"))
    return f"{words[:40].strip('-')}-{zlib.crc32(test.encode()):08x}"


@pytest.fixture
async def stage(control_plane: ControlPlane, namespace: str) -> AsyncIterator[Stage]:
    """Yield an operator, and a namespace for jobs. Afterwards, delete the jobs."""
    async with (
        Api.connect(control_plane.cluster) as api,
        FakeAgents.serving() as agents,
        OperatorEnvironment.of(control_plane, api, agents) as environment,
    ):
        made = Stage(environment, await api.create_namespace(namespace))
        yield made
        await made.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the cluster to the report of a failed test."""
    return diagnosis.add_to_failure((yield), item)
