"""Build configuration and arguments of the control plane's processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness import paths

# Seconds from a node's last heartbeat to its loss, and from there to the eviction of its pods.
# The kubelet sends a heartbeat every 2 s (see node_config).
NODE_GRACE_S: Final = 12
EVICTION_DELAY_S: Final = 5
# User as whom the API server forwards requests to an API server that an APIService registers.
AGGREGATOR: Final = "aggregator"
# Controllers that are off without nodes, because they would delete the pods of fake kubelets.
_NODE_CONTROLLERS: Final = (
    "node-lifecycle-controller",
    "node-ipam-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
)


def state(*parts: str) -> Path:
    """Return a path below the cluster's state."""
    return paths.STATE.joinpath(*parts)


def audit_policy() -> str:
    """Return an audit policy that records every answered request at Metadata level."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
    return yaml.safe_dump(policy)


def scheduler_config(kubeconfig: str) -> str:
    """Return the scheduler's configuration."""
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000},
    }
    return yaml.safe_dump(config)


def etcd() -> list[str]:
    """Return the arguments of etcd: loopback only, and no fsync because its data are disposable."""
    client = f"http://127.0.0.1:{paths.ETCD_CLIENT_PORT}"
    peer = f"http://127.0.0.1:{paths.ETCD_PEER_PORT}"
    return [
        f"--data-dir={state('etcd')}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]


def apiserver() -> list[str]:
    """Return the arguments of the API server."""
    return [*_apiserver_serving(), *_apiserver_identity(), *_apiserver_behaviour()]


def controller_manager(*, nodes: bool) -> list[str]:
    """Return the arguments of the controller manager.

    Args:
        nodes: Whether the cluster has real nodes.
    """
    kubeconfig = state("kubeconfigs", "kube-controller-manager.yaml")
    controllers = ["*", *([] if nodes else [f"-{name}" for name in _NODE_CONTROLLERS])]
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--authentication-skip-lookup=true",
        "--bind-address=127.0.0.1",
        f"--cert-dir={state('certificates', 'controller-manager')}",
        f"--controllers={','.join(controllers)}",
        f"--root-ca-file={state('pki', 'ca.crt')}",
        f"--cluster-signing-cert-file={state('pki', 'ca.crt')}",
        f"--cluster-signing-key-file={state('pki', 'ca.key')}",
        f"--service-account-private-key-file={state('pki', 'service-account.key')}",
        f"--service-cluster-ip-range={paths.SERVICE_NETWORK}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
        "--pvclaimbinder-sync-period=1s",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def scheduler() -> list[str]:
    """Return the arguments of the scheduler."""
    kubeconfig = state("kubeconfigs", "kube-scheduler.yaml")
    return [
        f"--config={state('config', 'scheduler.yaml')}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--authentication-skip-lookup=true",
        "--bind-address=127.0.0.1",
        f"--cert-dir={state('certificates', 'scheduler')}",
    ]


def kwok(kubeconfig: Path) -> list[str]:
    """Return the arguments of kwok."""
    return [
        f"--config={paths.TOOLS_MODULES / 'kwok' / 'stages.yaml'}",
        f"--kubeconfig={kubeconfig}",
        "--manage-all-nodes=true",
        f"--cidr={paths.FAKE_POD_NETWORK}",
        "--node-ip=127.0.0.1",
        "--node-lease-duration-seconds=0",
    ]


def _apiserver_serving() -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{paths.ETCD_CLIENT_PORT}",
        f"--bind-address={paths.API_ADDRESS}",
        f"--advertise-address={paths.API_ADDRESS}",
        f"--secure-port={paths.API_PORT}",
        f"--service-cluster-ip-range={paths.SERVICE_NETWORK}",
        f"--tls-cert-file={state('pki', 'apiserver.crt')}",
        f"--tls-private-key-file={state('pki', 'apiserver.key')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={state('pki', 'ca.crt')}",
        f"--kubelet-client-certificate={state('pki', 'apiserver-to-kubelet.crt')}",
        f"--kubelet-client-key={state('pki', 'apiserver-to-kubelet.key')}",
    ]


def _apiserver_identity() -> list[str]:
    key = state("pki", "service-account.key")
    return [
        f"--client-ca-file={state('pki', 'ca.crt')}",
        f"--service-account-issuer=https://kubernetes.default.svc.{paths.CLUSTER_DOMAIN}",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        *_aggregation(),
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]


def _aggregation() -> list[str]:
    """Return the arguments with which the API server forwards requests to other API servers."""
    return [
        f"--proxy-client-cert-file={state('pki', f'{AGGREGATOR}.crt')}",
        f"--proxy-client-key-file={state('pki', f'{AGGREGATOR}.key')}",
        f"--requestheader-client-ca-file={state('pki', 'ca.crt')}",
        f"--requestheader-allowed-names={AGGREGATOR}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    ]


def _apiserver_behaviour() -> list[str]:
    return [
        f"--audit-policy-file={state('config', 'audit.yaml')}",
        f"--audit-log-path={state('logs', 'audit.log')}",
        "--audit-log-maxsize=100000",
        f"--default-not-ready-toleration-seconds={EVICTION_DELAY_S}",
        f"--default-unreachable-toleration-seconds={EVICTION_DELAY_S}",
        "--shutdown-watch-termination-grace-period=1s",
        "--profiling=false",
    ]
