"""The operator as a process behind a fault proxy, with exactly the rights of the chart."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.api.client import Api
from tests.api.job import Job
from tests.api.kubelet import Agents
from tests.api.operator_process import OperatorProcess, write_kubeconfig
from tests.api.plane import OPERATOR, Plane
from tests.api.proxy import ADDRESS, Proxy
from tests.harness import paths
from tests.harness.pki import Authority


@dataclass(frozen=True)
class Front:
    """What stands between operators and the API server, and how to start one behind it."""

    proxy: Proxy
    kubeconfig: Path
    folder: Path

    def operator(self, name: str = "operator", **how: Any) -> OperatorProcess:
        """An operator that talks through the proxy; not started yet."""
        return OperatorProcess(self.kubeconfig, self.folder / f"{name}.log", **how)


@contextlib.contextmanager
def _front(plane: Plane, folder: Path) -> Iterator[Front]:
    """A fault proxy that is the operator's user to the API server."""
    authority = Authority(paths.STATE / "pki")
    server = authority.issue("proxy", "proxy", server_names=[ADDRESS])
    client, ca_file = authority.files(f"user-{OPERATOR}"), plane.cluster.ca_file
    with Proxy(plane.cluster.api_url, ca_file, client, server) as proxy:
        yield Front(proxy, write_kubeconfig(folder / "kubeconfig", proxy.url, ca_file, {}), folder)


@pytest.fixture(scope="module")
def front(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """What the operators of a module talk to."""
    with _front(plane, tmp_path_factory.mktemp("front")) as made:
        yield made


@pytest.fixture
def second_front(plane: Plane, tmp_path: Path) -> Iterator[Front]:
    """A proxy of its own for a second operator."""
    with _front(plane, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_operator(front: Front) -> Iterator[OperatorProcess]:
    """One operator for all tests of a module that do it no lasting harm."""
    with front.operator("shared") as operator:
        yield operator


@pytest.fixture
async def operator(shared_operator: OperatorProcess) -> OperatorProcess:
    """The operator of the module, ready."""
    await shared_operator.ready()
    return shared_operator


@pytest.fixture
def proxy(front: Front) -> Proxy:
    """The fault proxy before the operator."""
    return front.proxy


@pytest.fixture
def job(api: Api, agents: Agents, namespace: str) -> Job:
    """A job of the test's own, not created yet, and its kubelets."""
    return Job(api, agents, namespace)


@pytest.fixture
async def other_job(api: Api, agents: Agents, namespace: str) -> Job:
    """A job of another namespace, not created yet."""
    return Job(api, agents, await api.make_namespace(f"{namespace}-2"))
