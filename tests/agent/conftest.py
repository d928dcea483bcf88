"""Fixtures for tests of the agent."""

import os
from collections.abc import Iterator

import pytest

from ddp_agent.processes.warm import Standby, standby_environment
from tests.agent.support import adopting_orphans, environment


@pytest.fixture(scope="module")
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standby]:
    """Yield a standby whose imports are done, and end it after the last test of the module."""
    home = tmp_path_factory.mktemp("standby")
    made = Standby(standby_environment({**os.environ, **environment(home)}))
    assert made.wait_ready(60)
    yield made
    made.close()
    os.waitpid(made.pid, 0)


@pytest.fixture
def adopting_standby(standby: Standby) -> Iterator[Standby]:
    """Yield the standby while this process adopts its orphans, as PID 1 of a container does."""
    assert standby.imports_seconds is not None
    with adopting_orphans():
        yield standby
