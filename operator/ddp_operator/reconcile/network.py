"""Warn about pods that the NetworkPolicy of a job cannot protect."""

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.defaults import Defaults
from ddp_operator.reconcile.plan import Event, EventType


def unprotected_events(job: DDPJob, defaults: Defaults) -> tuple[Event, ...]:
    """Return the Event about pods that the NetworkPolicy cannot protect, if any."""
    template = job.spec.pod_template
    overlay = (template.spec or {}) if template is not None else {}
    field = "network" if job.spec.uses_host_network else "podTemplate"
    if defaults.agent_clients is None or not (field == "network" or overlay.get("hostNetwork")):
        return ()
    text = (
        f"{field} sets hostNetwork, so the job's NetworkPolicy does not protect its pods:"
        " everything that can connect to their Kubernetes nodes can connect to torchrun's store"
    )
    return (Event(EventType.WARNING, "NetworkPolicyIgnored", text),)
