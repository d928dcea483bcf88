"""Paths and addresses: the repository, the cache, the state, and the cluster's network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

HARNESS: Final = Path(__file__).resolve().parent
REPOSITORY: Final = HARNESS.parents[1]
TOOLS_MODULES: Final = HARNESS / "tools"

STATE: Final = Path("/var/lib/ddp-trainer-cluster")
LOCK: Final = STATE.with_suffix(".lock")

BRIDGE: Final = "ddp-br0"
POD_NETWORK: Final = "10.244.0.0/16"
FAKE_POD_NETWORK: Final = "10.128.0.0/12"
"""Addresses of pods on fake nodes. All of them are local to this machine."""
PREFIX_LENGTH: Final = 16
API_ADDRESS: Final = "10.244.0.1"
API_PORT: Final = 6443
API_URL: Final = f"https://{API_ADDRESS}:{API_PORT}"
SERVICE_NETWORK: Final = "10.96.0.0/16"
API_SERVICE_ADDRESS: Final = "10.96.0.1"
CLUSTER_DOMAIN: Final = "cluster.local"
ETCD_CLIENT_PORT: Final = 12379
ETCD_PEER_PORT: Final = 12380
MAX_NODES: Final = 8


def cache() -> Path:
    """Return the cache directory: `$DDP_TRAINER_CACHE` or `~/.cache/ddp-trainer`."""
    named = os.environ.get("DDP_TRAINER_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "ddp-trainer"


def node_name(number: int) -> str:
    """Return the name of the node with this number, counted from 1."""
    return f"node-{number}"


def node_address(number: int) -> str:
    """Return the bridge address of the node with this number, counted from 1."""
    return f"10.244.0.{number}"


def pod_cidr(number: int) -> str:
    """Return the pods' address range of the node with this number, counted from 1."""
    return f"10.244.{number}.0/24"
