"""The environment variables of a worker container; a part of the contract.

Apart from the rest so that the agent can start its standby before anything else is imported.
"""

from enum import StrEnum


class Env(StrEnum):
    """Environment variables of a worker container. The operator sets them, agent and ranks read."""

    JOB_NAME = "DDP_JOB_NAME"
    JOB_NAMESPACE = "DDP_JOB_NAMESPACE"
    JOB_UID = "DDP_JOB_UID"
    NODE_INDEX = "DDP_NODE_INDEX"
    NODES = "DDP_NODES"
    PROCS_PER_NODE = "DDP_PROCS_PER_NODE"
    RENDEZVOUS_HOST = "DDP_RENDEZVOUS_HOST"
    """DNS name of node 0, which hosts the c10d store."""
    RENDEZVOUS_PORT_BASE = "DDP_RENDEZVOUS_PORT_BASE"
    POD_ADDRESS = "DDP_POD_ADDRESS"
    """DNS name of this pod; torchrun announces it, and sorts by it."""
    NODE_NAME = "DDP_NODE_NAME"
    """The Kubernetes node."""
    RACK = "DDP_RACK"
    ZONE = "DDP_ZONE"
    """Where that node is, as far as the pod's labels tell it."""
    AGENT_BIND = "DDP_AGENT_BIND"
    """Address that the agent's HTTP server binds to; all addresses when unset."""
    AGENT_PORT = "DDP_AGENT_PORT"
    POD_INFO_DIR = "DDP_POD_INFO_DIR"
    TERMINATION_LOG = "DDP_TERMINATION_LOG"
    COMMAND = "DDP_COMMAND"
    """JSON list: what each rank runs, when the job states `command`; absent for a task."""
    TASK = "DDP_TASK"
    """Import path `package.module:function` of the task, when the job states `task`."""
    CONFIG = "DDP_CONFIG"
    """JSON object: the job's `config`."""
    STANDBY = "DDP_STANDBY"
    """`true` when attempts are to be forked from a warm standby."""
    CHECKPOINT_DIR = "DDP_CHECKPOINT_DIR"
    """The run's own directory on the shared volume; absent when the job states no checkpoint."""
    CHECKPOINT_EVERY_STEPS = "DDP_CHECKPOINT_EVERY_STEPS"
    CHECKPOINT_EVERY_SECONDS = "DDP_CHECKPOINT_EVERY_SECONDS"
    CHECKPOINT_KEEP = "DDP_CHECKPOINT_KEEP"
    # Set by the agent for its ranks:
    ATTEMPT = "DDP_ATTEMPT"
    BEATS_DIR = "DDP_BEATS_DIR"
    """Directory on the node where each rank leaves its newest beat."""
