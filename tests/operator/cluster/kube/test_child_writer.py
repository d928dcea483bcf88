"""Creation of children: conflicts by their reason, adoption, and restoration."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from ddp_operator.builders.network import build_network_policy
from ddp_operator.builders.pod import build_pod
from ddp_operator.builders.service import build_service
from ddp_operator.cluster.base import ClusterError, ConflictError, Manifest, NameTakenError
from ddp_operator.cluster.kube.child_writer import create_child, other_writer
from ddp_operator.cluster.kube.documents import refusal
from tests.operator.fake_time import run_in_fake_time
from tests.operator.support import AGENT_CLIENTS, DEFAULTS, active_job

JOB = active_job()
POD = build_pod(JOB, 1, 1, DEFAULTS)
SERVICE = build_service(JOB)
POLICY = build_network_policy(JOB, AGENT_CLIENTS)
QUOTA = b"""{"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message":
 "Operation cannot be fulfilled on resourcequotas \\"compute\\": the object has been modified;
 please apply your changes to the latest version and try again"}""".replace(b"\n", b"")
EXISTS = (
    b'{"code": 409, "reason": "AlreadyExists", "message": "pods \\"digits-1\\" already exists"}'
)


class Server:
    """API server that refuses the first creations with these bodies of HTTP status 409."""

    def __init__(self, *refusals: bytes, existing: Manifest | None = None) -> None:
        self.refusals, self.existing = list(refusals), existing
        self.requests: list[str] = []

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Manifest:
        del query
        self.requests.append(method)
        if method == "POST" and self.refusals:
            raise refusal(409, self.refusals.pop(0), None)
        if method == "GET" and self.existing is None:
            raise ClusterError(f"{path} not found", status=404)
        found = copy.deepcopy(body if method == "POST" else self.existing)
        assert found is not None
        return found

    def create(self, manifest: Manifest) -> tuple[Manifest, list[str]]:
        """Create a child. Return it, and the writers of restored fields."""
        created: list[Manifest] = []
        restored: list[str] = []

        async def body() -> None:
            created.append(await create_child(self.call, manifest, restored.append))

        run_in_fake_time(body())
        return created[0], restored


def stored(manifest: Manifest, **metadata: Any) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "uid": "u", **metadata}}


def test_conflict_from_a_quota_is_not_taken_for_an_existing_pod() -> None:
    server = Server(QUOTA, QUOTA)
    created, _ = server.create(POD)
    assert created["metadata"]["name"] == "digits-1"
    assert server.requests == ["POST", "POST", "POST"]


def test_conflict_that_lasts_raises_a_conflict_after_six_requests() -> None:
    server = Server(*[QUOTA] * 10)
    with pytest.raises(ConflictError, match="on resourcequotas"):
        server.create(POD)
    assert server.requests == ["POST"] * 6


def test_existing_child_of_the_job_is_adopted() -> None:
    server = Server(EXISTS, existing=stored(POD))
    created, restored = server.create(POD)
    assert (created["metadata"]["uid"], restored) == ("u", [])


def test_existing_child_of_another_owner_is_reported() -> None:
    server = Server(EXISTS, existing=stored(POD, ownerReferences=[{"uid": "other"}]))
    with pytest.raises(NameTakenError):
        server.create(POD)


def test_existing_pod_that_is_being_deleted_is_not_adopted() -> None:
    server = Server(EXISTS, existing=stored(POD, deletionTimestamp="2026-03-01T12:00:00Z"))
    with pytest.raises(ConflictError, match="Pod digits-1 exists and is being deleted"):
        server.create(POD)


def test_child_that_is_deleted_before_it_is_read_raises_a_conflict() -> None:
    with pytest.raises(ConflictError, match="was deleted before it could be read"):
        Server(EXISTS).create(POD)


def entry(manager: str, time: str, **spec: Any) -> Manifest:
    return {"manager": manager, "time": time, "fieldsV1": {"f:spec": spec}}


OURS = entry("ddp-operator", "2026-03-01T12:00:09Z", **{"f:ingress": {}, "f:selector": {}})


@pytest.mark.parametrize(
    ("fields", "writer"),
    [
        ([OURS], "an admission webhook or policy"),
        ([], "an admission webhook or policy"),
        ([OURS, entry("kyverno", "2026-03-01T12:00:00Z", **{"f:egress": {}})], "kyverno"),
        (
            [
                entry("labeller", "2026-03-01T12:00:05Z"),
                entry("kyverno", "2026-03-01T12:00:00Z", **{"f:egress": {}}),
            ],
            "kyverno",
        ),
        ([entry("kubectl-edit", "2026-03-01T12:00:00Z")], "kubectl-edit"),
    ],
)
def test_other_writer_of_a_child_is_named_in_the_error(fields: list[Manifest], writer: str) -> None:
    edited = stored({**POLICY, "spec": {**POLICY["spec"], "egress": [{}]}}, managedFields=fields)
    server = Server(EXISTS, existing=edited)
    _, restored = server.create(POLICY)
    assert restored == [writer]
    assert server.requests == ["POST", "GET", "PATCH"]
    assert other_writer(edited, {"spec": {"egress": None}}) == writer
