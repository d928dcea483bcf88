"""Tests of a job's NetworkPolicy: admitted peers, and the form that the API server stores."""

from typing import Any

import pytest
from pydantic import ValidationError

from ddp_operator.builders import names
from ddp_operator.builders.network import PolicyPeer, build_network_policy
from tests.operator.support import AGENT_CLIENTS, UID, new_job

OWN_PODS = {"podSelector": {"matchLabels": {"ddp-trainer.dev/job-uid": UID}}}
OPERATOR, SCRAPERS = (peer.to_manifest() for peer in AGENT_CLIENTS)


def test_network_policy_opens_all_ports_to_own_pods_and_one_port_to_clients() -> None:
    policy = build_network_policy(new_job(), AGENT_CLIENTS)
    assert policy["spec"] == {
        **OWN_PODS,
        "ingress": [
            {"from": [OWN_PODS]},
            {"ports": [{"protocol": "TCP", "port": 8470}], "from": [OPERATOR, SCRAPERS]},
        ],
        "policyTypes": ["Ingress"],
    }


def test_network_policy_is_a_child_of_its_job() -> None:
    job = new_job()
    metadata = build_network_policy(job, AGENT_CLIENTS)["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("digits", "team-a")
    assert metadata["labels"] == names.labels(job)
    assert metadata["ownerReferences"] == [names.owner_reference(job)]


def test_network_policy_without_clients_has_no_rule_that_admits_everyone() -> None:
    ingress = build_network_policy(new_job(), ())["spec"]["ingress"]
    assert ingress == [{"from": [OWN_PODS]}]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"podSelector": {"matchLabels": {}}}, {"podSelector": {}}),
        ({"namespaceSelector": {}, "podSelector": None}, {"namespaceSelector": {}}),
        ({"ipBlock": {"cidr": "10.0.0.0/8"}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}),
    ],
)
def test_network_policy_peer_has_the_form_that_the_api_server_stores(
    given: dict[str, Any], stored: dict[str, Any]
) -> None:
    """Otherwise each reconcile would restore the policy."""
    assert PolicyPeer.model_validate(given).to_manifest() == stored


@pytest.mark.parametrize(
    "given",
    [{}, {"podSelectr": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}],
    ids=["empty", "misspelt", "address and selector"],
)
def test_network_policy_peer_that_the_api_server_would_refuse_is_refused(
    given: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError):
        PolicyPeer.model_validate(given)
