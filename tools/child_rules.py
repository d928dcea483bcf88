"""Build the rules about the Service and the NetworkPolicy of a job."""

from typing import Any

from ddp_operator.builders.network import PolicyPeer, build_network_policy
from ddp_operator.builders.service import build_service
from ddp_wire import contract
from tools.cel import FREE, keys, literal, same, same_value
from tools.policy_samples import sample_job, validation_rule

JSON = dict[str, Any]


def service_rule() -> JSON:
    """Return the rule about a Service. An update may keep fields that other writers changed."""
    spec = build_service(sample_job())["spec"]
    by_api_server = {
        "clusterIPs": ["None"],
        "internalTrafficPolicy": "Cluster",
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }
    port = {**spec["ports"][0], "targetPort": contract.AGENT_PORT}
    cases = ["k in ['ipFamilies', 'ipFamilyPolicy']"]
    values = {key: value for key, value in spec.items() if key not in {"ports", "selector"}}
    for key, value in (values | by_api_server).items():
        cases.append(f"(k == '{key}' && object.spec.{key} == {literal(value)})")
    cases.append(f"(k == 'ports' && {same('object.spec.ports', [port])})")
    cases.append("k == 'selector'")
    kept = (
        "(request.operation == 'UPDATE' && k in oldObject.spec"
        " && object.spec[k] == oldObject.spec[k])"
    )
    selector = f"object.spec.selector == {literal(spec['selector'])}"
    created = " && ".join(f"has(object.spec.{key})" for key in (*values, "ports"))
    expression = (
        f"has(object.spec.selector) && {selector} && {created}"
        f" && object.spec.all(k, {kept} || {' || '.join(cases)})"
    )
    return validation_rule(
        expression, "may write only the headless Service of a job for its own pods"
    )


def network_policy_rule() -> JSON:
    """Return the rule about a NetworkPolicy. The chart inserts the peers of the second entry."""
    peer = PolicyPeer(pod_selector={"matchLabels": {"a": "b"}})
    spec = build_network_policy(sample_job(), [peer])["spec"]
    clients = spec["ingress"][1].pop("from")
    assert clients == [peer.to_manifest()]
    spec["ingress"][1]["from"] = FREE
    ingress = "object.spec.ingress"
    own, agent = spec.pop("ingress")
    rules = [
        keys("object.spec", [*spec, "ingress"]),
        *(
            f"has(object.spec.{key}) && {same_value('object.spec', key, v)}"
            for key, v in spec.items()
        ),
        f"has({ingress}) && size({ingress}) == 2",
        f"{keys(f'{ingress}[0]', own)} && {ingress}[0].from == {literal(own['from'])}",
        f"{keys(f'{ingress}[1]', agent)} && {same(f'{ingress}[1].ports', agent['ports'])}",
        f"{ingress}[1].from == __AGENT_CLIENTS__",
    ]
    return validation_rule(
        " && ".join(rules),
        "may write only the NetworkPolicy of a job for its own pods, with the peers of the chart",
    )
