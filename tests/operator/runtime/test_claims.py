"""The claim of a job's checkpoints with an in-memory API server."""

from typing import Any

import pytest

from ddp_operator.api.status import ConditionType
from ddp_operator.cluster.base import ClusterError, Manifest, NameTakenError
from ddp_operator.reconcile.claims import CLAIM
from tests.operator.fake_cluster import Killed
from tests.operator.runtime.test_controller import KEY, Bench
from tests.operator.support import after, job_manifest, summary

NAME = "digits-checkpoints"


def template(size: str = "10Gi", **fields: Any) -> dict[str, Any]:
    return {"checkpoint": {"claimTemplate": {"size": size, **fields}}}


def stored(bench: Bench) -> Manifest:
    (found,) = bench.cluster.children[CLAIM].values()
    return found


def bind(bench: Bench) -> None:
    size = stored(bench)["spec"]["resources"]["requests"]["storage"]
    bench.cluster.change_claim(NAME, phase="Bound", capacity={"storage": size})


async def edit(bench: Bench, **spec: Any) -> None:
    bench.cluster.apply(job_manifest(nodes=2, **spec))
    await bench.reconcile_until_idle()


async def test_claim_is_created_before_the_pods_and_once() -> None:
    bench = Bench(**template())
    await bench.reconcile_until_idle()
    created = [write for write in bench.cluster.writes if write.startswith("create")]
    assert set(created[:2]) == {"create Service digits", f"create {CLAIM} {NAME}"}
    assert created[2:] == ["create Pod digits-0", "create Pod digits-1"]
    bench.start_controller()
    before = len(bench.cluster.writes)
    await bench.reconcile_until_idle()
    assert bench.written_since(before) == []


async def test_pods_are_not_created_with_the_claim_of_another_user() -> None:
    bench = Bench(**template())
    theirs = {"name": NAME, "namespace": "team-a", "uid": "t", "labels": {}}
    bench.cluster.children[CLAIM]["team-a", NAME] = {"metadata": theirs}
    for _ in range(2):
        with pytest.raises(NameTakenError):
            await bench.reconcile()
    assert bench.cluster.pods() == []
    assert bench.cluster.children[CLAIM]["team-a", NAME] == {"metadata": theirs}


@pytest.mark.parametrize("retention", ["Retain", "Delete"])
async def test_deleted_job_keeps_or_deletes_its_claim(retention: str) -> None:
    bench = Bench(**template(whenDeleted=retention))
    await bench.reconcile_until_idle()
    await bench.cluster.delete_job(KEY, job_manifest()["metadata"]["uid"])
    kept = [name for _, name in bench.cluster.children[CLAIM]]
    assert kept == ([NAME] if retention == "Retain" else [])
    assert not any(write.startswith(f"delete {CLAIM}") for write in bench.cluster.writes)


async def test_larger_size_and_other_retention_are_written_while_the_ranks_train() -> None:
    bench = Bench(**template())
    await bench.reconcile_until_idle()
    bind(bench)
    await bench.train()
    before = len(bench.cluster.writes)
    await edit(bench, **template("20Gi", whenDeleted="Delete"))
    patches = [w for w in bench.written_since(before) if not w.startswith("status")]
    assert patches == [f"patch {CLAIM} {NAME}"]
    assert stored(bench)["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert stored(bench)["metadata"]["ownerReferences"]
    assert bench.status().attempt == 1


async def test_refused_growth_is_a_condition_and_stops_nothing() -> None:
    bench = Bench(**template())
    await bench.reconcile_until_idle()
    bind(bench)
    await bench.train()
    refusal = ClusterError("the storageclass must support resize", status=403)
    bench.cluster.refusals[f"patch {CLAIM}"] = refusal
    await edit(bench, **template("20Gi"))
    found = bench.status().condition(ConditionType.CLAIM_BOUND)
    assert found is not None
    assert found.reason == "GrowthRefused"
    assert "the storageclass must support resize" in found.message
    assert summary(bench.status())[1] == "Running"
    assert bench.cluster.writes.count(f"patch {CLAIM} {NAME}") == 1


async def test_other_errors_of_a_change_are_retried() -> None:
    bench = Bench(**template())
    await bench.reconcile_until_idle()
    bind(bench)
    bench.cluster.refusals[f"patch {CLAIM}"] = ClusterError("timeout", status=504)
    bench.cluster.apply(job_manifest(nodes=2, **template("20Gi")))
    for _ in range(2):
        with pytest.raises(ClusterError, match="timeout"):
            await bench.reconcile()
    bench.cluster.refusals.clear()
    await bench.reconcile_until_idle()
    assert stored(bench)["spec"]["resources"]["requests"]["storage"] == "20Gi"


async def test_newest_event_of_a_waiting_claim_is_read_ever_more_rarely() -> None:
    bench = Bench(**template())
    await bench.reconcile_until_idle()
    uid = stored(bench)["metadata"]["uid"]
    bench.cluster.warnings[uid] = "ProvisioningFailed: no quota"
    for second in range(0, 1200, 5):
        bench.now = after(second)
        await bench.reconcile()
    found = bench.status().condition(ConditionType.CLAIM_BOUND)
    assert found is not None
    assert found.message.endswith("waits for its volume: ProvisioningFailed: no quota")
    reads = bench.cluster.warning_reads.count(uid)
    assert 4 <= reads <= 12
    bind(bench)
    bench.now = after(2000)
    await bench.reconcile()
    assert bench.cluster.warning_reads.count(uid) == reads


@pytest.mark.parametrize("kill_after", [False, True], ids=["before", "after"])
async def test_operator_killed_at_any_write_makes_one_claim(kill_after: bool) -> None:
    undisturbed = Bench(**template(whenDeleted="Delete"))
    await undisturbed.train()
    for write in range(1, len(undisturbed.cluster.writes) + 1):
        bench = Bench(**template(whenDeleted="Delete"))
        bench.cluster.kill_at(write, after=kill_after)
        try:
            await bench.train()
        except Killed:
            bench.cluster.revive()
            bench.start_controller()
            await bench.train()
        assert stored(bench)["metadata"]["name"] == NAME
        assert bench.status().attempt == 1
        assert len(bench.cluster.pods()) == 2
