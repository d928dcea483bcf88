"""Play NetworkPolicies by packet rules in network namespaces.

No CNI plugin that enforces NetworkPolicies can be installed here, so this module replaces one. The
module reads the policy objects as the Kubernetes API defines them, for the fields that the operator
uses. Like Calico and Cilium by default, it lets the Kubernetes node connect to its pods, because
the kubelet's probes come from the node.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]
_NODE_ADDRESS = "10.213.0.1"
_NODE = f"ddp-{os.getpid()}-node"
"""Network namespace of the Kubernetes node, with the bridge between the pods."""
_LISTEN = """
import select, socket, sys
listeners = [socket.create_server(("", int(port)), backlog=64) for port in sys.argv[1:]]
print("listening", flush=True)
while True:
    for ready in select.select(listeners, [], [])[0]:
        ready.accept()[0].close()
"""
_CONNECT = """
import json, socket, sys
address, *ports = sys.argv[1:]
def reaches(port):
    try:
        socket.create_connection((address, int(port)), timeout=2).close()
    except OSError:
        return False
    return True
print(json.dumps([int(port) for port in ports if reaches(port)]))
"""


@dataclass(frozen=True)
class PlayedPod:
    """A pod with its own network namespace."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    address: str

    @property
    def network(self) -> str:
        """Name of the pod's network namespace."""
        return f"ddp-{os.getpid()}-{self.name}"


def _selected(selector: JSON, labels: Mapping[str, str]) -> bool:
    unknown = selector.keys() - {"matchLabels"}
    if unknown:
        raise NotImplementedError(f"selectors with {unknown} are not played")
    return dict(selector.get("matchLabels", {})).items() <= labels.items()


def _admits(peer: JSON, policy: JSON, pod: PlayedPod) -> bool:
    """Return whether a peer of a rule matches a pod."""
    unknown = peer.keys() - {"namespaceSelector", "podSelector"}
    if unknown:
        raise NotImplementedError(f"peers with {unknown} are not played")
    if "namespaceSelector" in peer:
        namespace = {"kubernetes.io/metadata.name": pod.namespace}
        if not _selected(peer["namespaceSelector"], namespace):
            return False
    elif pod.namespace != policy["metadata"]["namespace"]:
        return False  # A pod selector alone means pods of the policy's own namespace.
    return _selected(peer.get("podSelector", {}), pod.labels)


def rules(policy: JSON, target: PlayedPod, pods: Sequence[PlayedPod]) -> str:
    """Return the nftables rules that enforce a policy for one pod. "" for none."""
    spec, namespace = policy["spec"], policy["metadata"]["namespace"]
    isolated = target.namespace == namespace and _selected(spec["podSelector"], target.labels)
    if not isolated or "Ingress" not in spec["policyTypes"]:
        return ""
    accepts = [f"ip saddr {_NODE_ADDRESS} accept", "ct state established,related accept"]
    for rule in spec.get("ingress", []):
        peers = rule.get("from")
        known = [p.address for p in pods if any(_admits(peer, policy, p) for peer in peers or [])]
        sources = "" if peers is None else f"ip saddr {{ {', '.join(known)} }} "
        if peers is not None and not known:
            continue
        ports = [f"{p['protocol'].lower()} dport {p['port']} " for p in rule.get("ports", [])]
        accepts += [f"{sources}{port}accept" for port in ports or [""]]
    return "\n".join(
        [
            "add table inet guard",
            "add chain inet guard in { type filter hook input priority 0; policy accept; }",
            'add rule inet guard in iifname "lo" accept',
            *(f"add rule inet guard in {accept}" for accept in accepts),
            "add rule inet guard in reject with tcp reset",
        ]
    )


class PlayedNetwork:
    """Pods on one bridge. Create it with `played_network`."""

    def __init__(self, pods: Sequence[PlayedPod]) -> None:
        self._pods = pods

    def enforce(self, policies: Iterable[JSON]) -> None:
        """Enforce policies for all pods, as a CNI plugin does."""
        for policy in policies:
            for pod in self._pods:
                script = rules(policy, pod, self._pods)
                _run("ip", "netns", "exec", pod.network, "nft", "-f", "-", stdin=script)

    def reached_ports(self, source: PlayedPod | None, target: PlayedPod) -> list[int]:
        """Return the listening ports of a pod that another pod, or else the node, can reach."""
        inside = source.network if source else _NODE
        command = ("ip", "netns", "exec", inside, sys.executable, "-S", "-c", _CONNECT)
        shown = _run(*command, target.address, *map(str, self._ports))
        reached: list[int] = json.loads(shown)
        return reached

    @contextmanager
    def listening(self, pod: PlayedPod, ports: Sequence[int]) -> Iterator[None]:
        """Accept connections at ports of a pod."""
        self._ports = ports
        command = ["ip", "netns", "exec", pod.network, sys.executable, "-S", "-c", _LISTEN]
        with subprocess.Popen(
            [*command, *map(str, ports)], stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == "listening\n"
                yield
            finally:
                server.kill()


@contextmanager
def played_network(pods: Sequence[PlayedPod]) -> Iterator[PlayedNetwork]:
    """Create a network namespace for each pod, and a bridge between them. It needs root."""
    with ExitStack() as stack:
        for name in (_NODE, *(pod.network for pod in pods)):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
        _run("ip", "-n", _NODE, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", _NODE, "address", "add", f"{_NODE_ADDRESS}/24", "dev", "bridge0")
        _run("ip", "-n", _NODE, "link", "set", "bridge0", "up")
        for index, pod in enumerate(pods):
            _connect_to_bridge(pod, f"pod{index}")
        yield PlayedNetwork(pods)


def _connect_to_bridge(pod: PlayedPod, device: str) -> None:
    cable = ("type", "veth", "peer", "name", "eth0", "netns", pod.network)
    _run("ip", "-n", _NODE, "link", "add", device, "master", "bridge0", *cable)
    _run("ip", "-n", _NODE, "link", "set", device, "up")
    _run("ip", "-n", pod.network, "address", "add", f"{pod.address}/24", "dev", "eth0")
    for name in ("eth0", "lo"):
        _run("ip", "-n", pod.network, "link", "set", name, "up")


def _run(*command: str, stdin: str = "") -> str:
    ended = subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, timeout=30
    )
    assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr}"
    return ended.stdout
