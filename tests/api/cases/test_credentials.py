"""The operator with a service account's token, as in a pod, while the token is replaced."""

import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.cases.conftest import Front
from tests.api.client import Api, eventually, path_of
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.api.plane import Plane
from tests.api.proxy import ADDRESS
from tests.tools.install import RELEASE, SYSTEM_NAMESPACE

pytestmark = pytest.mark.api

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_MOUNT = (
    "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io"
    ' && ln -s "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)


class Account:
    """A service account with the operator's rights, and the folder that its pod would see."""

    def __init__(self, api: Api, folder: Path, ca_file: Path) -> None:
        self._api, self.folder = api, folder
        folder.mkdir()
        shutil.copy(ca_file, folder / "ca.crt")
        (folder / "namespace").write_text(SYSTEM_NAMESPACE, encoding="ascii")

    async def renew(self) -> str:
        """Put a new token in place of the old one, as a kubelet does. Returns it."""
        path = path_of("serviceaccounts", SYSTEM_NAMESPACE, RELEASE, "token")
        token: str = (await self._api.call("POST", path, {"spec": {}}))["status"]["token"]
        fresh = self.folder / "token.new"
        fresh.write_text(token, encoding="ascii")
        fresh.rename(self.folder / "token")
        return token

    @property
    def before(self) -> tuple[str, ...]:
        """Words in front of a command that shall find the folder where a pod has it."""
        private = ("unshare", "--mount", "--propagation", "private")
        return (*private, "sh", "-c", _MOUNT, str(self.folder))


@pytest.fixture
async def account(plane: Plane, api: Api, tmp_path: Path) -> AsyncIterator[Account]:
    """The account, bound until the end of the test."""
    subject = {"kind": "ServiceAccount", "name": RELEASE, "namespace": SYSTEM_NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RELEASE}
    binding = {"metadata": {"name": "as-a-pod"}, "roleRef": role, "subjects": [subject]}
    accounts = path_of("serviceaccounts", SYSTEM_NAMESPACE)
    await api.call("POST", accounts, {"metadata": {"name": RELEASE}})
    await api.call("POST", BINDINGS, binding)
    try:
        yield Account(api, tmp_path / "account", plane.cluster.ca_file)
    finally:
        await api.call("DELETE", f"{BINDINGS}/as-a-pod")
        await api.call("DELETE", f"{accounts}/{RELEASE}")


def as_in_a_pod(front: Front, account: Account) -> OperatorProcess:
    """An operator that finds what it finds in a pod."""
    variables = {
        "KUBERNETES_SERVICE_HOST": ADDRESS,
        "KUBERNETES_SERVICE_PORT": str(front.proxy.port),
    }
    return front.operator("in-a-pod", before=account.before, environment=variables)


async def test_case_54_a_token_that_is_replaced_and_then_expires_is_followed(
    front: Front, account: Account, job: Job
) -> None:
    first = await account.renew()
    with as_in_a_pod(front, account) as operator:
        await operator.ready()
        await job.train()
        before = await job.uids()
        assert await account.renew() != first
        front.proxy.refused_tokens.add(first)
        front.proxy.cut_watches()
        expired = time.monotonic()
        await job.fail_rank(0)
        await job.pods_of_attempt(2)
        assert time.monotonic() - expired < 10.0
        assert await job.uids() == before
        assert operator.alive
        assert "Traceback" not in operator.log


async def test_case_54_a_token_that_expires_before_it_is_replaced_is_waited_for(
    front: Front, account: Account, job: Job
) -> None:
    first = await account.renew()
    with as_in_a_pod(front, account) as operator:
        await operator.ready()
        await job.train()
        front.proxy.refused_tokens.add(first)
        front.proxy.cut_watches()
        await eventually(lambda: operator.says(503, "Unauthorized"), "it is not ready")
        await account.renew()
        await operator.ready()
        await job.fail_rank(0)
        await job.pods_of_attempt(2)
