"""The NetworkPolicy exists before the pods, is restored, and hostNetwork is reported once."""

from dataclasses import replace
from typing import Any

from ddp_operator.api.pod_policy import PodTemplatePolicy
from ddp_operator.builders.host_ports import PortRange
from ddp_operator.builders.network import build_network_policy
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod, EnsureChild, Plan
from ddp_operator.reconcile.world import World
from tests.operator.support import (
    AGENT_CLIENTS,
    DEFAULTS,
    GUARDED,
    active_job,
    all_pods,
    new_job,
    with_status,
    world,
)

TOLERANT = replace(GUARDED, pod_template=PodTemplatePolicy.FULL)
"""Values of an installation in which a job may use the network of its Kubernetes nodes."""
ON_THE_HOST: dict[str, Any] = {"podTemplate": {"spec": {"hostNetwork": True}}}


def protected(seen: World) -> World:
    """Return the observed state with the NetworkPolicy that the job should have."""
    return with_policy(seen, build_network_policy(seen.job, AGENT_CLIENTS))


def with_policy(seen: World, policy: dict[str, Any]) -> World:
    return replace(seen, children={**seen.children, "NetworkPolicy": [policy]})


def warnings(plan: Plan) -> list[str]:
    return [event.reason for event in plan.events if event.reason == "NetworkPolicyIgnored"]


def test_new_job_gets_a_network_policy_beside_its_service() -> None:
    plan = decide(world(new_job(nodes=2), service=False), GUARDED)
    children = [one for one in plan.actions if isinstance(one, EnsureChild | CreatePod)]
    kinds = [child.manifest["kind"] for child in children]
    assert kinds == ["Service", "NetworkPolicy", "Pod", "Pod"]


def test_running_job_of_an_older_operator_gets_a_network_policy_and_keeps_its_pods() -> None:
    job = active_job()
    plan = decide(world(job, all_pods(job)), GUARDED)
    assert plan.actions == (EnsureChild(build_network_policy(job, AGENT_CLIENTS)),)
    assert decide(protected(world(job, all_pods(job))), GUARDED).actions == ()


def test_changed_network_policy_is_restored() -> None:
    job = active_job()
    seen = with_policy(world(job, all_pods(job)), {"spec": {"podSelector": {}}})
    [action] = decide(seen, GUARDED).actions
    assert action == EnsureChild(build_network_policy(job, AGENT_CLIENTS))


def test_operator_without_network_policies_neither_creates_nor_changes_one() -> None:
    job = active_job()
    seen = with_policy(world(job, all_pods(job)), {"spec": {"podSelector": {}}})
    assert decide(seen, DEFAULTS).actions == ()
    tolerant = replace(TOLERANT, agent_clients=None)
    assert decide(world(new_job(**ON_THE_HOST)), tolerant).events[1:] == ()


def test_job_that_asks_for_the_host_network_is_warned() -> None:
    asks = new_job(network={"hostNetwork": True})
    open_to_all = replace(TOLERANT, host_ports=PortRange(20_000, 20_099))
    plan = decide(replace(world(asks), free_port=20_000), open_to_all)
    assert warnings(plan) == ["NetworkPolicyIgnored"]
    assert plan.events[1].message.startswith("network sets hostNetwork, so the job's NetworkPolicy")


def test_job_on_the_network_of_its_kubernetes_nodes_is_warned_once() -> None:
    first = decide(world(new_job(**ON_THE_HOST)), TOLERANT)
    assert warnings(first) == ["NetworkPolicyIgnored"]
    job = active_job(**ON_THE_HOST)
    later = decide(world(job, all_pods(job)), TOLERANT)
    lost = decide(world(job, all_pods(job, phase="Failed")), TOLERANT)
    assert warnings(later) == warnings(lost) == []
    assert warnings(decide(world(new_job()), TOLERANT)) == []


def test_job_that_is_edited_to_use_the_host_network_is_warned() -> None:
    job = with_status(active_job(**ON_THE_HOST), attempt_spec_hash="older")
    plan = decide(world(job, all_pods(job)), TOLERANT)
    assert (plan.events[0].reason, warnings(plan)) == ("SpecChanged", ["NetworkPolicyIgnored"])
