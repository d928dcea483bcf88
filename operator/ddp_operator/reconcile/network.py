"""The NetworkPolicy of a job: what it needs, and whom it cannot protect."""

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.network import build_network_policy
from ddp_operator.builders.pod import Defaults
from ddp_operator.reconcile.plan import Action, CreateNetworkPolicy, Event, EventType
from ddp_operator.reconcile.world import World


def ensure_network_policy(world: World, defaults: Defaults) -> list[Action]:
    """Return the action that creates the job's NetworkPolicy or restores its spec, if any."""
    if defaults.agent_clients is None:
        return []
    wanted = build_network_policy(world.job, defaults.agent_clients)
    return [] if world.network_policy == wanted["spec"] else [CreateNetworkPolicy(wanted)]


def unprotected_events(job: DDPJob, defaults: Defaults) -> tuple[Event, ...]:
    """Return the Event about pods that the NetworkPolicy cannot protect, if any."""
    template = job.spec.pod_template
    if defaults.agent_clients is None or template is None:
        return ()
    if not (template.spec or {}).get("hostNetwork"):
        return ()
    text = (
        "podTemplate sets hostNetwork, so the job's NetworkPolicy does not protect its pods:"
        " everything that can connect to their Kubernetes nodes can connect to torchrun's store"
    )
    return (Event(EventType.WARNING, "NetworkPolicyIgnored", text),)
