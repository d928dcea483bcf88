"""Repairs of children that another writer changes again and again."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from ddp_operator.cluster.base import Manifest
from ddp_operator.runtime.repairs import PUBLISHED, Repairs
from tests.operator.runtime.test_controller import Bench
from tests.operator.support import GUARDED, NOW


def add_engine(
    bench: Bench, kind: str, edit: Manifest, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Let a policy engine edit a child at each write. Return the times of restorations."""
    restored: list[int] = []
    create = bench.cluster.create

    async def create_and_edit(
        manifest: Manifest, on_restored: Callable[[str], None] = lambda _: None
    ) -> Manifest:
        existed = bool(bench.cluster.children[manifest["kind"]])
        created = await create(manifest)
        if manifest["kind"] != kind:
            return created
        if existed:
            restored.append((bench.now - NOW).seconds)
            on_restored("kyverno")
        edited = {**created, "spec": manifest["spec"] | edit}
        return bench.cluster._store_child(kind, edited)

    monkeypatch.setattr(bench.cluster, "create", create_and_edit)
    return restored


@pytest.mark.parametrize(
    ("kind", "edit"),
    [("NetworkPolicy", {"egress": [{}]}), ("Service", {"publishNotReadyAddresses": False})],
)
async def test_policy_engine_that_edits_each_write_causes_few_repairs(
    kind: str, edit: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator must not restore the child at each reconcile without a message."""
    bench = Bench(defaults=GUARDED)
    restored = add_engine(bench, kind, edit, monkeypatch)
    await bench.train()
    for second in range(130):
        bench.now = NOW + timedelta(seconds=second)
        await bench.reconcile()
    assert restored == [0, 2, 6, 14, 30, 62, 126]
    events = [e for e in bench.cluster.events if e.reason == "ChildOverwritten"]
    text = (
        f"kyverno changes the {kind} digits again each time the operator restores it; the"
        " operator continues to restore it, later once per 5 min"
    )
    assert [e.message for e in events] == [text]
    assert bench.status().attempt == 1


async def test_deleted_child_is_created_again_during_the_pause_of_repairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(defaults=GUARDED)
    restored = add_engine(bench, "NetworkPolicy", {"egress": [{}]}, monkeypatch)
    await bench.train()
    for second in range(10):
        bench.now = NOW + timedelta(seconds=second)
        await bench.reconcile()
    assert restored == [0, 2, 6]
    [policy] = bench.cluster.children["NetworkPolicy"].values()
    bench.cluster._drop_child("NetworkPolicy", policy)
    await bench.reconcile()
    assert bench.cluster.children["NetworkPolicy"]


def test_pause_between_repairs_ends_after_a_quiet_time() -> None:
    now = NOW
    repairs = Repairs(lambda: now)
    for _ in range(PUBLISHED - 1):
        assert repairs.record("Service", "digits", "kubectl") is None
    assert repairs.is_held("Service", "digits")
    now += timedelta(minutes=2)
    assert not repairs.is_held("Service", "digits")
    assert repairs.record("Service", "digits", "kubectl") is None, "counted from 1 again"
    assert not repairs.is_held("Service", "other")
