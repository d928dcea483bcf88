"""Build configuration of the processes on a node, and of the network that the nodes share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness import debian, paths, pause

HEARTBEAT_S: Final = 2
_LEASE_S: Final = 4 * HEARTBEAT_S  # the kubelet renews its Lease after a quarter of this
_DISABLED_PLUGINS: Final = (
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing",
)


def kubelet(number: int, folder: Path, cgroup: str) -> str:
    """Return the kubelet's configuration.

    Args:
        number: The node's number, counted from 1.
        folder: The node's folder in the state.
        cgroup: The group that holds the node's pods.
    """
    pki = paths.STATE / "pki"
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": paths.node_address(number),
        "healthzPort": 0,
        "containerRuntimeEndpoint": f"unix://{folder / 'containerd.sock'}",
        "authentication": {
            "x509": {"clientCAFile": str(pki / "ca.crt")},
            "webhook": {"enabled": True},
            "anonymous": {"enabled": False},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{paths.node_name(number)}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{paths.node_name(number)}.key"),
        "clusterDNS": [paths.API_ADDRESS],
        "clusterDomain": paths.CLUSTER_DOMAIN,
        "resolvConf": str(paths.STATE / "config" / "resolv.conf"),
        "podLogsDir": str(folder / "pod-logs"),
        "volumePluginDir": str(folder / "volume-plugins"),
        "nodeStatusUpdateFrequency": f"{HEARTBEAT_S}s",
        "nodeLeaseDurationSeconds": _LEASE_S,
        "maxPods": 200,
        "serializeImagePulls": False,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "registryPullQPS": 0,
    }
    return yaml.safe_dump(config | _kubelet_resources(cgroup))


def kube_proxy(kubeconfig: str) -> str:
    """Return kube-proxy's configuration."""
    config: dict[str, Any] = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "bindAddress": paths.API_ADDRESS,
        "healthzBindAddress": f"{paths.API_ADDRESS}:10256",
        "metricsBindAddress": f"{paths.API_ADDRESS}:10249",
        "hostnameOverride": paths.node_name(1),
        "clusterCIDR": paths.POD_NETWORK,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0},
        "nftables": {"minSyncPeriod": "0s"},
    }
    return yaml.safe_dump(config)


def containerd(folder: Path, runc: str) -> str:
    """Return containerd's configuration, with all its files below the node's folder.

    Args:
        folder: The node's folder in the state.
        runc: The path of runc.
    """
    disabled = ", ".join(f'"{name}"' for name in _DISABLED_PLUGINS)
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{folder}/containerd"
state = "{folder}/run"
oom_score = 0
disabled_plugins = [{disabled}]

[grpc]
address = "{folder}/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"

[{cri}]
sandbox_image = "{pause.IMAGE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[{cri}.cni]
bin_dir = "{debian.CNI_PLUGINS}"
conf_dir = "{folder}/cni"

[{cri}.containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{folder}/runc"
SystemdCgroup = false
"""


def cni(number: int, folder: Path) -> str:
    """Return the network configuration of a node's pods: one bridge, a range per node."""
    first = paths.pod_cidr(number).removesuffix("0/24")
    ipam: dict[str, Any] = {
        "type": "host-local",
        "dataDir": str(folder / "cni-leases"),
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [
            [
                {
                    "subnet": paths.POD_NETWORK,
                    "rangeStart": f"{first}2",
                    "rangeEnd": f"{first}254",
                    "gateway": paths.API_ADDRESS,
                }
            ]
        ],
    }
    bridge = {"type": "bridge", "bridge": paths.BRIDGE, "hairpinMode": True, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})


def corefile(kubeconfig: str) -> str:
    """Return CoreDNS's configuration: only the cluster's names exist, and none is cached."""
    return f"""\
{paths.CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
    bind {paths.API_ADDRESS}
    errors
    kubernetes {paths.CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods disabled
        ttl 1
    }}
}}
.:53 {{
    bind {paths.API_ADDRESS}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def _kubelet_resources(cgroup: str) -> dict[str, Any]:
    return {
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": ["pods"],
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "200Mi",
            "nodefs.available": "1Gi",
            "imagefs.available": "1Gi",
        },
    }
