"""Environment variables of a worker container, a part of the wire contract.

They have their own module so that the agent can start its standby without importing pydantic.
"""

from enum import StrEnum


class Env(StrEnum):
    """Environment variables that the operator sets and that agent and ranks read."""

    JOB_NAME = "DDP_JOB_NAME"
    JOB_NAMESPACE = "DDP_JOB_NAMESPACE"
    JOB_UID = "DDP_JOB_UID"
    NODE_INDEX = "DDP_NODE_INDEX"
    NODES = "DDP_NODES"
    PROCS_PER_NODE = "DDP_PROCS_PER_NODE"
    GPUS_PER_NODE = "DDP_GPUS_PER_NODE"
    """GPUs that the pod requests. Absent without any."""
    RENDEZVOUS_HOST = "DDP_RENDEZVOUS_HOST"
    """DNS name of node 0, which hosts the c10d store."""
    RENDEZVOUS_PORT_BASE = "DDP_RENDEZVOUS_PORT_BASE"
    POD_ADDRESS = "DDP_POD_ADDRESS"
    """DNS name of this pod. torchrun announces it to its peers and sorts nodes by it."""
    NODE_NAME = "DDP_NODE_NAME"
    """Name of the Kubernetes node."""
    RACK = "DDP_RACK"
    ZONE = "DDP_ZONE"
    """Zone of that Kubernetes node. `RACK` and `ZONE` are empty if the pod lacks the label."""
    AGENT_BIND = "DDP_AGENT_BIND"
    """Address to which the agent's HTTP server binds. All addresses when unset."""
    AGENT_PORT = "DDP_AGENT_PORT"
    AGENT_SECRET = "DDP_AGENT_SECRET"  # noqa: S105 (the name of a variable)
    """Secret with which operator and agent sign their messages. Each pod has another one."""
    BARRIER_PORT = "DDP_BARRIER_PORT"
    """Port on which node 0's agent waits for the agents of the other nodes."""
    GRACE_SECONDS = "DDP_GRACE_SECONDS"
    """Seconds between SIGTERM and SIGKILL when the pod is deleted."""
    POD_INFO_DIR = "DDP_POD_INFO_DIR"
    TERMINATION_LOG = "DDP_TERMINATION_LOG"
    COMMAND = "DDP_COMMAND"
    """JSON list: command of each rank if the job sets `command`. Absent for a task."""
    TASK = "DDP_TASK"
    """Import path `package.module:function` of the task, if the job sets `task`."""
    CONFIG = "DDP_CONFIG"
    """JSON object: `config` of the job."""
    LOG_FORMAT = "DDP_LOG_FORMAT"
    """`json` if the agent logs one JSON object per line. Text when unset."""
    STANDBY = "DDP_STANDBY"
    """`true` if the agent forks attempts from a warm standby."""
    CHECKPOINT_DIR = "DDP_CHECKPOINT_DIR"
    """Directory of the run on the shared volume. Absent if the job sets no checkpoint."""
    CHECKPOINT_EVERY_STEPS = "DDP_CHECKPOINT_EVERY_STEPS"
    CHECKPOINT_EVERY_SECONDS = "DDP_CHECKPOINT_EVERY_SECONDS"
    CHECKPOINT_KEEP = "DDP_CHECKPOINT_KEEP"
    # The agent sets these for its ranks:
    ATTEMPT = "DDP_ATTEMPT"
    BEATS_DIR = "DDP_BEATS_DIR"
    """Directory in the container where each rank writes its newest heartbeat."""
