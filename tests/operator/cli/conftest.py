"""Fixtures of tests of `ddpjob` with an API server that has jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator.client.jobs_api import JobsApi


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobsApi]:
    """Yield an API server, which the kubeconfig of the process names."""
    server = JobsApi()
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    yield server
    server.close()
