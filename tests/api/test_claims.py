"""Claims of checkpoints on a real API server: creation, owner, growth and the policy about them."""

from typing import Any

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.builders.claim import build_claim
from ddp_operator.cluster.base import NameTakenError
from tests.api.client import Api, eventually, path_of
from tests.api.control_plane import ControlPlane
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.mutations import changed
from tests.api.simulated_job import SimulatedJob
from tests.api.test_operator_policy import refusal, strict_release
from tests.operator.support import job_manifest
from tests.scenarios.flows import NAME

pytestmark = pytest.mark.api

JSON = dict[str, Any]
CLAIMS, CLAIM = "persistentvolumeclaims", f"{NAME}-checkpoints"
CREATES_ONLY = "may create only the claim of a job's claimTemplate"
CHANGES_ONLY = "may change only the size and the owner of a claim"
WITH_EXPANSION = "claims-that-grow"


def template(size: str = "1Gi", **fields: Any) -> JSON:
    return {"checkpoint": {"claimTemplate": {"size": size, **fields}}}


class Claimed(SimulatedJob):
    """A job with a claimTemplate."""

    @property
    def claim_path(self) -> str:
        return path_of(CLAIMS, self.namespace, CLAIM)

    async def claim(self) -> JSON:
        return await self.environment.api.call("GET", self.claim_path)

    async def claim_condition(self) -> tuple[str, str]:
        conditions = {c["type"]: c for c in (await self.status())["conditions"]}
        found = conditions["ClaimBound"]
        return found["reason"], found["message"]

    async def bind(self) -> None:
        """Let Kubernetes bind the claim to a volume of 1 GiB."""
        api, spec = self.environment.api, (await self.claim())["spec"]
        volume = {
            "metadata": {"name": f"volume-{self.namespace}"},
            "spec": {
                "accessModes": spec["accessModes"],
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": self.namespace, "name": CLAIM},
                "hostPath": {"path": "/nowhere"},
                "storageClassName": spec["storageClassName"],
            },
        }
        await api.call("POST", "/api/v1/persistentvolumes", volume)

        async def is_bound() -> bool:
            return bool((await self.claim())["status"]["phase"] == "Bound")

        await eventually(is_bound, f"{CLAIM} is bound")


async def test_claim_lasts_or_goes_with_its_job_as_the_edited_template_says(
    environment: OperatorEnvironment, namespace: str
) -> None:
    job = Claimed(environment, namespace)
    made = await job.apply(**template(storageClassName=""))
    operator = job.new_operator()
    await operator.reconcile_until_idle()
    claim = await job.claim()
    assert "ownerReferences" not in claim["metadata"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    assert (await job.claim_condition())[0] == "Pending"
    deleted = template(storageClassName="", whenDeleted="Delete")
    await job.edit(**deleted)
    await operator.reconcile_until_idle()
    owners = (await job.claim())["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == [made["metadata"]["uid"]]
    kept = template(storageClassName="", whenDeleted="Retain")
    await job.edit(**kept)
    await operator.reconcile_until_idle()
    assert "ownerReferences" not in (await job.claim())["metadata"]
    assert (await job.status())["attempt"] == 1
    before = operator.writes
    await operator.reconcile_until_idle()
    assert operator.writes == before


async def test_claim_of_another_user_is_left_alone_and_named(
    environment: OperatorEnvironment, namespace: str
) -> None:
    job = Claimed(environment, namespace)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "5Gi"}}}
    body = {"metadata": {"name": CLAIM}, "spec": {**spec, "storageClassName": ""}}
    theirs = await environment.api.call("POST", path_of(CLAIMS, namespace), body)
    await job.apply(**template(whenDeleted="Delete"))
    operator = job.new_operator()
    for _ in range(3):
        with pytest.raises(NameTakenError):
            await operator.reconcile_once()
    reason, message = await job.summary()
    assert reason == "Invalid"
    assert message.startswith(f"PersistentVolumeClaim {CLAIM} exists already and is not this job's")
    now = await job.claim()
    assert (now["metadata"], now["spec"]) == (theirs["metadata"], theirs["spec"])
    assert await job.pods() == []


@pytest.fixture
async def expandable(api: Api) -> str:
    """Return the name of a StorageClass that lets claims grow."""
    path = "/apis/storage.k8s.io/v1/storageclasses"
    if await api.find(f"{path}/{WITH_EXPANSION}") is None:
        body = {"metadata": {"name": WITH_EXPANSION}, "provisioner": "example.com/none"}
        await api.call("POST", path, {**body, "allowVolumeExpansion": True})
    return WITH_EXPANSION


async def test_bound_claim_grows_if_its_class_allows_it(
    environment: OperatorEnvironment, namespace: str, expandable: str
) -> None:
    job = Claimed(environment, namespace)
    await job.apply(**template(storageClassName=expandable))
    operator = job.new_operator()
    await operator.reconcile_until_idle()
    await job.bind()
    await job.edit(**template("2Gi", storageClassName=expandable))
    await operator.reconcile_until_idle()
    assert (await job.claim())["spec"]["resources"]["requests"]["storage"] == "2Gi"
    sentence = f"the claim {CLAIM} is bound with 1Gi and grows to 2Gi"
    assert await job.claim_condition() == ("Bound", sentence)
    await job.edit(**template("1Gi", storageClassName=expandable))
    await operator.reconcile_until_idle()
    assert (await job.claim())["spec"]["resources"]["requests"]["storage"] == "2Gi"


async def test_growth_that_the_class_forbids_is_reported_and_ends_nothing(
    environment: OperatorEnvironment, namespace: str
) -> None:
    job = Claimed(environment, namespace)
    await job.apply(**template(storageClassName=""))
    operator = job.new_operator()
    await operator.reconcile_until_idle()
    await job.bind()
    await job.edit(**template("2Gi", storageClassName=""))
    await operator.reconcile_until_idle()
    reason, message = await job.claim_condition()
    assert reason == "GrowthRefused"
    assert f"the claim {CLAIM} is bound with 1Gi; it does not grow to 2Gi: " in message
    await job.run_until("Completed", operator)
    assert (await job.claim())["spec"]["resources"]["requests"]["storage"] == "1Gi"


@pytest.mark.parametrize("retention", ["Retain", "Delete"])
async def test_policy_lets_the_operator_write_the_claim_of_a_job_and_no_other(
    control_plane: ControlPlane, api: Api, namespace: str, retention: str
) -> None:
    async with strict_release(control_plane, namespace) as (operator, _):
        given = job_manifest(**template(storageClassName="", whenDeleted=retention))
        job = await api.apply_job(namespace, {**given, "metadata": {"name": NAME}})
        claim, path = build_claim(parse_job(job)), path_of(CLAIMS, namespace)
        assert claim is not None
        assert await refusal(operator, "POST", path, claim) == ""
        for name, wrong in wrong_claims(claim):
            assert CREATES_ONLY in await refusal(operator, "POST", path, wrong), name
        await api.call("POST", path, claim)
        own = path_of(CLAIMS, namespace, CLAIM)
        for change in WRONG_CHANGES:
            assert CHANGES_ONLY in await refusal(operator, "PATCH", own, change), change
        reference = {"metadata": {"ownerReferences": _owner(job)}}
        for allowed in (reference, {"metadata": {"ownerReferences": None}}):
            assert await refusal(operator, "PATCH", own, allowed) == ""
        assert "may write only" in await refusal(operator, "DELETE", own)
        unlabelled = changed(claim, ("metadata", "labels"), {})
        other = changed(unlabelled, ("metadata", "name"), "other")
        await api.call("POST", path, changed(other, ("metadata", "ownerReferences"), []))
        take = {"metadata": {"labels": claim["metadata"]["labels"]}}
        theirs = path_of(CLAIMS, namespace, "other")
        assert CHANGES_ONLY in await refusal(operator, "PATCH", theirs, take)


def _owner(job: JSON) -> list[JSON]:
    given = parse_job({**job, "spec": {**job["spec"], **template(whenDeleted="Delete")}})
    claim = build_claim(given)
    assert claim is not None
    owners: list[JSON] = claim["metadata"]["ownerReferences"]
    return owners


def wrong_claims(claim: JSON) -> list[tuple[str, JSON]]:
    """Return claims that the operator never builds, each with what is wrong."""

    def metadata(*path: str, **to: Any) -> JSON:
        return changed(claim, ("metadata", *path), **to)

    owned = {**_POD, "apiVersion": "ddp-trainer.dev/v1alpha1", "kind": "DDPJob"}
    return [
        ("name", metadata("name", value="other-checkpoints")),
        ("job name", metadata("labels", "ddp-trainer.dev/job-name", value="other")),
        ("no uid", metadata("labels", "ddp-trainer.dev/job-uid", removed=True)),
        ("manager", metadata("labels", "app.kubernetes.io/managed-by", value="other")),
        ("owner", metadata("ownerReferences", value=[_POD])),
        ("other job", metadata("ownerReferences", value=[{**owned, "controller": True}])),
        ("finalizer", metadata("finalizers", value=["example.com/keep"])),
        ("volume", changed(claim, ("spec", "volumeName"), "theirs")),
        ("block device", changed(claim, ("spec", "volumeMode"), "Block")),
        (
            "source",
            changed(claim, ("spec", "dataSource"), {"kind": "PersistentVolumeClaim", "name": "a"}),
        ),
        ("mode", changed(claim, ("spec", "accessModes"), ["ReadOnlyMany"])),
        ("selector", changed(claim, ("spec", "selector"), {"matchLabels": {"a": "b"}})),
    ]


_POD = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}
WRONG_CHANGES: tuple[JSON, ...] = (
    {"metadata": {"labels": {"app": "database"}}},
    {"metadata": {"labels": {"ddp-trainer.dev/job-uid": "other"}}},
    {"metadata": {"labels": {"ddp-trainer.dev/job-name": "other"}}},
    {"metadata": {"annotations": {"a.example/b": "c"}}},
    {"metadata": {"finalizers": []}},
    {
        "metadata": {
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]
        }
    },
)
"""Merge patches of a claim that the operator never sends."""


async def test_claim_of_whendeleted_delete_goes_with_its_job(
    environment: OperatorEnvironment, namespace: str
) -> None:
    job = Claimed(environment, namespace)
    await job.apply(**template(storageClassName="", whenDeleted="Delete"))
    await job.new_operator().reconcile_until_idle()
    api = environment.api
    await api.call("DELETE", path_of("ddpjobs", namespace, NAME))

    async def leaves() -> bool:
        await job.kubelet.finish_deletions()
        claim = await api.find(job.claim_path)
        return claim is None or "deletionTimestamp" in claim["metadata"]

    await eventually(leaves, "the claim of a job with whenDeleted Delete")
