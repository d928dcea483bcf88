"""Build the NetworkPolicy that lets only known peers connect to a job's pods."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

from ddp_operator.api.job import DDPJob
from ddp_operator.builders import names
from ddp_wire import contract

Selector = dict[str, Any]


class PolicyPeer(BaseModel):
    """Peer of a NetworkPolicy, as networking.k8s.io/v1 defines it."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    ip_block: dict[str, Any] | None = None
    namespace_selector: Selector | None = None
    pod_selector: Selector | None = None

    @model_validator(mode="after")
    def _check(self) -> "PolicyPeer":
        selectors = (self.namespace_selector, self.pod_selector)
        if (self.ip_block is not None) == any(s is not None for s in selectors):
            raise ValueError(
                "a peer must have either ipBlock or at least one of namespaceSelector and"
                " podSelector"
            )
        return self

    def to_manifest(self) -> dict[str, Any]:
        """Return the peer in the form that the API server stores, so that both can be compared."""
        given = self.model_dump(by_alias=True, exclude_none=True)
        return {
            field: {k: v for k, v in value.items() if v not in (None, {}, [])}
            for field, value in given.items()
        }


def build_network_policy(job: DDPJob, agent_clients: Sequence[PolicyPeer]) -> dict[str, Any]:
    """Return the manifest of a job's NetworkPolicy.

    The job's own pods may connect to each other on every port, because collectives choose their
    ports at random. All other peers may connect at most to the agent's port.

    Args:
        job: The job.
        agent_clients: Peers that may connect to the agent's port, including the operator.
    """
    selector = {"matchLabels": names.pod_selector(job)}
    agent_port = {"protocol": "TCP", "port": contract.AGENT_PORT}
    ingress: list[dict[str, Any]] = [{"from": [{"podSelector": selector}]}]
    if agent_clients:  # A rule without any peer would allow all peers.
        clients = [peer.to_manifest() for peer in agent_clients]
        ingress.append({"ports": [agent_port], "from": clients})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": names.network_policy_name(job),
            "namespace": job.metadata.namespace,
            "labels": names.labels(job),
            "ownerReferences": [names.owner_reference(job)],
        },
        "spec": {"podSelector": selector, "ingress": ingress, "policyTypes": ["Ingress"]},
    }
