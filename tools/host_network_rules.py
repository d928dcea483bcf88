"""Build the rules about pods on the network of their Kubernetes nodes, in CEL.

Such a pod may use only the ports that the installation reserves, so that no pod takes the port of
another program. Without reserved ports no pod may use that network.
"""

from typing import Any

from tools.cel import quoted, same

_ON_HOST = "object.spec.?hostNetwork.orValue(false)"
"""CEL expression that is true for a pod on the network of its Kubernetes node."""
_RANGE = "[__HOST_PORTS__]"
"""CEL list of the first and the last port of `workers.hostPorts`, or of two zeros."""


def host_network_fields() -> dict[str, str]:
    """Return the rules about the values of pod spec fields."""
    policy = f"{_ON_HOST} ? 'ClusterFirstWithHostNet' : 'ClusterFirst'"
    return {
        "dnsPolicy": f"object.spec.dnsPolicy == ({policy})",
        "hostNetwork": f"(!object.spec.hostNetwork || {_RANGE}[0] > 0)",
    }


def host_port(place: str) -> str:
    """Return the rule about the host port of a container's port.

    The API server sets the host port of each port of a pod on the network of its node.
    """
    port = f"{place}.hostPort"
    reserved = f"{port} >= {_RANGE}[0] && {port} <= {_RANGE}[1]"
    return f"!has({port}) || ({_ON_HOST} && {port} == {place}.containerPort && {reserved})"


def worker_ports(place: str, built: list[dict[str, Any]]) -> str:
    """Return the rule about the ports of the worker container.

    Args:
        place: CEL expression of the list of ports.
        built: Ports of a pod with a network of its own. Other pods have ports of the same names.
    """
    names = quoted(port["name"] for port in built)
    named = f"{place}.map(p, p.?name.orValue('')) == {names}"
    return f"has({place}) && ({_ON_HOST} ? {named} : ({same(place, built)}))"
