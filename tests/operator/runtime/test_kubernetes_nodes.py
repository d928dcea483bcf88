"""Tests that events of Kubernetes nodes update node views and queue the affected jobs."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.cluster.base import ClusterError, Key, Listing, Manifest
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.reconcile.node_view import NodeView, Taint, Toleration
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.kubernetes_nodes import KubernetesNodes
from tests.operator.runtime.test_controller import Bench as ControllerBench
from tests.operator.support import DEFAULTS, NOW, active_job, pod_manifest

FORBIDDEN = ClusterError("nodes is forbidden", status=403)
PRODUCT = "nvidia.com/gpu.product"
TAINT = {"key": "gpu", "value": "broken", "effect": "NoSchedule"}


def node(name: str = "machine-0", **spec: Any) -> Manifest:
    """Return a Kubernetes node with the fields that the watch keeps."""
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    return keep_used_fields("Node", {"metadata": metadata, "spec": spec})


class Bench:
    """Views of nodes, and a cache with the pods of some jobs."""

    def __init__(self, *jobs: str) -> None:
        self.cache, self._woken = Cache(), list[Key]()
        self.nodes = KubernetesNodes(self.cache.places, self._woken.append, PRODUCT)
        for name in jobs:
            self.put_pod(name)

    def put_pod(self, job: str = "digits", node: str = "machine-0", **metadata: Any) -> None:
        pod = pod_manifest(active_job(), 0)
        pod["metadata"] |= {"name": f"{job}-0", "uid": f"uid-{job}", **metadata}
        pod["metadata"]["labels"]["ddp-trainer.dev/job-name"] = job
        pod["spec"] |= {"nodeName": node}
        self.cache.put_child("Pod", keep_used_fields("Pod", pod))

    def put(self, *nodes: Manifest) -> list[str]:
        for one in nodes:
            self.nodes.put("Node", one)
        return self.woken()

    def relist(self, *nodes: Manifest) -> list[str]:
        with self.nodes.relist("Node", None) as take:
            take(Listing(nodes, 9))
        return self.woken()

    def report(self, *errors: ClusterError | None) -> list[str]:
        for error in errors:
            self.nodes.report("Node", None, error)
        return self.woken()

    def woken(self) -> list[str]:
        """Return the names of the jobs that were queued since the last call."""
        names = sorted(name for _, name in self._woken)
        self._woken.clear()
        return names

    def views(self, *names: str | None) -> dict[str, NodeView]:
        return dict(self.nodes.of(names or ("machine-0",)))


def test_only_a_changed_view_queues_the_jobs_on_the_node() -> None:
    bench = Bench("digits", "other")
    bench.put_pod("elsewhere", "machine-1")
    assert bench.put(node()) == [], "a usable node is no news"
    assert bench.put(node(unschedulable=True)) == ["digits", "other"]
    heartbeat = node(unschedulable=True)
    heartbeat["metadata"]["resourceVersion"] = "2"
    assert bench.put(heartbeat) == []
    assert bench.put(node(unschedulable=True, taints=[TAINT])) == ["digits", "other"]
    assert bench.views() == {
        "machine-0": NodeView("machine-0", True, (Taint("gpu", "broken", "NoSchedule"),))
    }
    assert bench.put(node()) == ["digits", "other"]


def test_label_that_names_the_gpu_product_later_queues_the_jobs_on_the_node() -> None:
    """The label appears some seconds after the node, and after the first pods on it."""
    bench, labelled = Bench("digits"), node()
    labelled["metadata"]["labels"] = {PRODUCT: "NVIDIA-L4", "zone": "a"}
    assert bench.put(node()) == []
    assert bench.put(keep_used_fields("Node", labelled)) == ["digits"]
    assert bench.views() == {"machine-0": NodeView("machine-0", gpu_product="NVIDIA-L4")}


def test_first_sight_of_an_unusable_node_queues_its_jobs() -> None:
    bench = Bench("digits")
    assert bench.put(node(taints=[TAINT]), node("machine-1", unschedulable=True)) == ["digits"]


def test_job_of_a_pod_that_ended_or_is_being_deleted_is_not_queued() -> None:
    bench = Bench("digits")
    bench.put_pod("digits", deletionTimestamp="2026-03-01T12:00:00Z", resourceVersion="5")
    assert bench.put(node(unschedulable=True)) == []


def test_deleted_node_has_no_view() -> None:
    bench = Bench("digits")
    bench.put(node(unschedulable=True), node("machine-1"))
    bench.nodes.drop("Node", node())
    assert bench.woken() == ["digits"]
    assert bench.views("machine-0", "machine-1", None) == {"machine-1": NodeView("machine-1")}
    bench.nodes.drop("Node", node("never-seen"))
    assert bench.woken() == []


def test_node_list_drops_deleted_nodes_and_queues_only_jobs_on_changed_nodes() -> None:
    bench = Bench("digits")
    bench.put_pod("other", "machine-1")
    assert bench.relist(node(unschedulable=True), node("machine-1")) == ["digits"]
    assert bench.relist(node(unschedulable=True), node("machine-1")) == []
    assert bench.relist(node("machine-1", taints=[TAINT])) == ["digits", "other"]
    assert list(bench.views("machine-0", "machine-1")) == ["machine-1"]


def test_refused_node_watch_is_logged_once_and_clears_all_node_views(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench("digits")
    bench.put(node(unschedulable=True), node("machine-1"))
    with caplog.at_level(logging.INFO):
        assert bench.report(None, FORBIDDEN, FORBIDDEN) == ["digits"]
        assert bench.views("machine-0", "machine-1") == {}
        assert bench.report(None, None) == ["digits"]
    assert bench.views("machine-0") == {"machine-0": NodeView("machine-0", cordoned=True)}
    sentence, again = caplog.messages
    meaning = (
        "elastic jobs leave a Kubernetes node only when their pods there are evicted, and a job may"
        " mix GPU products"
    )
    assert sentence == (
        f"the Kubernetes nodes are not watched, so that {meaning}: nodes is forbidden"
    )
    assert again == "the Kubernetes nodes are watched again"


def test_outage_of_the_api_server_keeps_node_views_and_does_not_end_a_refusal() -> None:
    bench, outage = Bench("digits"), ClusterError("starting", status=503)
    bench.put(node(unschedulable=True))
    assert bench.report(outage) == []
    assert list(bench.views()) == ["machine-0"]
    assert bench.report(FORBIDDEN, outage) == ["digits"]
    assert bench.views() == {}


def test_event_of_one_node_queues_only_jobs_on_that_node(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(1000):
        bench.put_pod(f"job-{number}", f"machine-{number}")
    looked: list[str] = []
    jobs_on = bench.cache.places.jobs_on

    def look(name: str) -> set[Key]:
        looked.append(name)
        return jobs_on(name)

    monkeypatch.setattr(bench.cache.places, "jobs_on", look)
    bench.relist(*(node(f"machine-{number}") for number in range(1000)))
    assert looked == []
    assert bench.put(node("machine-7", unschedulable=True)) == ["job-7"]
    assert looked == ["machine-7"]


async def test_member_on_a_cordoned_node_leaves_at_the_next_step_boundary() -> None:
    bench = ControllerBench(nodes=2, elastic={"minNodes": 1})
    woken: list[Key] = []
    nodes = KubernetesNodes(bench.cache.places, woken.append, PRODUCT)
    bench.controller = Controller(
        bench.cluster, bench.cache, DEFAULTS, lambda: NOW, agents=bench.agents, nodes=nodes
    )
    await bench.train()
    assert bench.status().members == "0-1"
    nodes.put("Node", node("machine-1", unschedulable=True))
    assert woken == [("team-a", "digits")]
    await bench.reconcile()
    assert bench.status().members == "0"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
TAINTS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.none() | st.sampled_from(["gpu", "node.kubernetes.io/unschedulable"]),
            "value": st.none() | st.text(max_size=4),
            "effect": st.none() | st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
            "timeAdded": JSON_VALUES,
        },
    ),
    max_size=3,
)
SPECS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "unschedulable": st.none() | st.booleans(),
        "taints": st.none() | TAINTS,
        "podCIDR": JSON_VALUES,
    },
)
MANIFESTS = st.builds(
    lambda number, spec, rest: {
        **rest,
        "metadata": {"name": f"machine-{number}", "uid": "u", "resourceVersion": "1"},
        **({"spec": spec} if spec != {} else {}),
    },
    st.integers(0, 3),
    SPECS,
    st.dictionaries(st.sampled_from(["status", "kind"]), JSON_VALUES),
)


@pytest.mark.slow
@given(st.lists(MANIFESTS, max_size=8), st.lists(MANIFESTS, max_size=8))
def test_any_kubernetes_node_objects_are_tracked_without_an_error(
    events: list[Manifest], listed: list[Manifest]
) -> None:
    bench = Bench("digits")
    names = [f"machine-{number}" for number in range(4)]
    for event in events:
        before = bench.views(*names)
        woken = bench.put(keep_used_fields("Node", event))
        changed = [n for n, v in bench.views(*names).items() if v != before.get(n, NodeView(n))]
        assert woken == (["digits"] if "machine-0" in changed else [])
    bench.relist(*(keep_used_fields("Node", one) for one in listed))
    assert set(bench.views(*names)) == {one["metadata"]["name"] for one in listed}
    for view in bench.views(*names).values():
        assert view.cordoned or view.why_unusable([Toleration(exists=True)]) is None
