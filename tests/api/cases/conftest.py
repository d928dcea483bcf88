"""Fixtures for the operator as a process with the chart's permissions, behind a fault proxy."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.client import Api
from tests.api.control_plane import OPERATOR, ControlPlane
from tests.api.job import Job
from tests.api.kubelet import FakeAgents
from tests.api.operator_process import OperatorProcess, write_kubeconfig
from tests.api.proxy import ADDRESS, FaultProxy
from tests.harness import paths
from tests.harness.pki import Authority


@dataclass(frozen=True)
class OperatorLauncher:
    """A fault proxy, and the means to start operators that reach the API server through it."""

    proxy: FaultProxy
    kubeconfig: Path
    folder: Path

    def operator(self, name: str = "operator", **how: Any) -> OperatorProcess:
        """Return an operator that uses the proxy, not started yet."""
        return OperatorProcess(self.kubeconfig, self.folder / f"{name}.log", **how)


@contextlib.contextmanager
def _launcher(control_plane: ControlPlane, folder: Path) -> Iterator[OperatorLauncher]:
    """Yield a fault proxy that presents the operator's certificate to the API server."""
    authority = Authority(paths.STATE / "pki")
    server = authority.issue("proxy", "proxy", server_names=[ADDRESS])
    client, ca_file = (
        authority.files(f"user-{quote(OPERATOR, safe='')}"),
        control_plane.cluster.ca_file,
    )
    with FaultProxy(control_plane.cluster.api_url, ca_file, client, server) as proxy:
        yield OperatorLauncher(
            proxy, write_kubeconfig(folder / "kubeconfig", proxy.url, ca_file, {}), folder
        )


@pytest.fixture(scope="module")
def launcher(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorLauncher]:
    """Yield the launcher for the operators of a module."""
    with _launcher(control_plane, tmp_path_factory.mktemp("launcher")) as made:
        yield made


@pytest.fixture
def second_launcher(control_plane: ControlPlane, tmp_path: Path) -> Iterator[OperatorLauncher]:
    """Yield a launcher with a separate proxy for a second operator."""
    with _launcher(control_plane, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_operator(launcher: OperatorLauncher) -> Iterator[OperatorProcess]:
    """Yield one operator for all tests of a module that do not damage it."""
    with launcher.operator("shared") as operator:
        yield operator


@pytest.fixture
async def operator(shared_operator: OperatorProcess) -> OperatorProcess:
    """Return the operator of the module once it is ready."""
    await shared_operator.wait_until_ready()
    return shared_operator


@pytest.fixture
def proxy(launcher: OperatorLauncher) -> FaultProxy:
    """Return the fault proxy of the module's operators."""
    return launcher.proxy


@pytest.fixture
def job(api: Api, agents: FakeAgents, namespace: str) -> Job:
    """Return a job for this test alone, with its fake kubelets. The job is not created yet."""
    return Job(api, agents, namespace)


@pytest.fixture
async def other_job(api: Api, agents: FakeAgents, namespace: str) -> Job:
    """Return a job in a second namespace, not created yet."""
    return Job(api, agents, await api.create_namespace(f"{namespace}-2"))


@pytest.fixture
async def third_job(api: Api, agents: FakeAgents, namespace: str) -> Job:
    """Return a job in a third namespace, not created yet."""
    return Job(api, agents, await api.create_namespace(f"{namespace}-3"))
