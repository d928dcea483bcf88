"""Tests of an operator with a service account token, as in a pod, while the token is rotated."""

import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.cases.conftest import OperatorLauncher
from tests.api.client import Api, eventually, path_of
from tests.api.control_plane import ControlPlane
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.api.proxy import ADDRESS
from tests.harness.install import RELEASE, SYSTEM_NAMESPACE

pytestmark = pytest.mark.api

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_MOUNT = (
    "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io"
    ' && ln -s "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)


class ServiceAccount:
    """A service account with the operator's permissions, and the folder that a pod would mount."""

    def __init__(self, api: Api, folder: Path, ca_file: Path) -> None:
        self._api, self.folder = api, folder
        folder.mkdir()
        shutil.copy(ca_file, folder / "ca.crt")
        (folder / "namespace").write_text(SYSTEM_NAMESPACE, encoding="ascii")

    async def rotate_token(self) -> str:
        """Replace the token file with a new token, as a kubelet does, and return the token."""
        path = path_of("serviceaccounts", SYSTEM_NAMESPACE, RELEASE, "token")
        token: str = (await self._api.call("POST", path, {"spec": {}}))["status"]["token"]
        fresh = self.folder / "token.new"
        fresh.write_text(token, encoding="ascii")
        fresh.rename(self.folder / "token")
        return token

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """Command prefix that mounts the folder at its path in a pod."""
        private = ("unshare", "--mount", "--propagation", "private")
        return (*private, "sh", "-c", _MOUNT, str(self.folder))


@pytest.fixture
async def account(
    control_plane: ControlPlane, api: Api, tmp_path: Path
) -> AsyncIterator[ServiceAccount]:
    """Yield the service account, bound to the operator's role until the end of the test."""
    subject = {"kind": "ServiceAccount", "name": RELEASE, "namespace": SYSTEM_NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RELEASE}
    binding = {"metadata": {"name": "as-a-pod"}, "roleRef": role, "subjects": [subject]}
    accounts = path_of("serviceaccounts", SYSTEM_NAMESPACE)
    await api.call("POST", accounts, {"metadata": {"name": RELEASE}})
    await api.call("POST", BINDINGS, binding)
    try:
        yield ServiceAccount(api, tmp_path / "account", control_plane.cluster.ca_file)
    finally:
        await api.call("DELETE", f"{BINDINGS}/as-a-pod")
        await api.call("DELETE", f"{accounts}/{RELEASE}")


def as_in_a_pod(launcher: OperatorLauncher, account: ServiceAccount) -> OperatorProcess:
    """Return an operator that finds address and credentials as in a pod."""
    variables = {
        "KUBERNETES_SERVICE_HOST": ADDRESS,
        "KUBERNETES_SERVICE_PORT": str(launcher.proxy.port),
    }
    return launcher.operator(
        "in-a-pod", command_prefix=account.command_prefix, environment=variables
    )


async def test_operator_uses_the_rotated_token_when_the_old_one_expires(
    launcher: OperatorLauncher, account: ServiceAccount, job: Job
) -> None:
    first = await account.rotate_token()
    with as_in_a_pod(launcher, account) as operator:
        await operator.wait_until_ready()
        await job.train()
        before = await job.uids()
        assert await account.rotate_token() != first
        launcher.proxy.expired_tokens.add(first)
        launcher.proxy.cut_watches()
        expired = time.monotonic()
        await job.fail_rank(0)
        await job.pods_of_attempt(2)
        assert time.monotonic() - expired < 10.0
        assert await job.uids() == before
        assert operator.alive
        assert "Traceback" not in operator.log


async def test_operator_recovers_when_an_expired_token_is_rotated_late(
    launcher: OperatorLauncher, account: ServiceAccount, job: Job
) -> None:
    first = await account.rotate_token()
    with as_in_a_pod(launcher, account) as operator:
        await operator.wait_until_ready()
        await job.train()
        launcher.proxy.expired_tokens.add(first)
        launcher.proxy.cut_watches()
        await eventually(lambda: operator.answers(503, "Unauthorized"), "the operator is not ready")
        await account.rotate_token()
        await operator.wait_until_ready()
        await job.fail_rank(0)
        await job.pods_of_attempt(2)
