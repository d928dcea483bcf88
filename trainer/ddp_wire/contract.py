"""Wire contract between operator, agent and trainer: all names that at least two of them use.

These are labels, annotations, paths and ports. The module `messages` defines the documents. Both
modules import only the standard library and pydantic, so that the operator can import them without
torch and the trainer without kopf. No other module may define these names.
"""

from ddp_wire.exit_codes import ExitCode as ExitCode  # noqa: PLC0414 (part of the contract)
from ddp_wire.variables import Env as Env  # noqa: PLC0414 (part of the contract)

GROUP = "ddp-trainer.dev"

# --- Labels and annotations -----------------------------------------------------------------------

LABEL_JOB_NAME = f"{GROUP}/job-name"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_NODE_INDEX = f"{GROUP}/node-index"
LABEL_INIT_STEP = f"{GROUP}/init-step"
"""On a pod of an init step: the name of the step. Such a pod has no node index."""
LABEL_RACK = f"{GROUP}/rack"
"""On a pod: the rack of its Kubernetes node. The administrator sets it; it may be absent."""
LABEL_ZONE = "topology.kubernetes.io/zone"
"""On a pod: the zone. Kubernetes 1.35 and later copy it from the Kubernetes node (KEP-4742)."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "ddp-trainer"

ANNOTATION_ATTEMPT = f"{GROUP}/attempt"
"""On a pod: the order of the attempt to run, see `orders`, or `ATTEMPT_STOP`."""
ATTEMPT_STOP = "stop"
"""Value of the attempt annotation that makes an agent stop its ranks and exit."""
ANNOTATION_FIRST_ATTEMPT = f"{GROUP}/first-attempt"
"""On a pod: the number of the attempt for which the operator created it."""
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
"""On a pod: hash of the part of the spec from which the operator created the pod."""
ANNOTATION_GANG_GROUP = f"{GROUP}/gang-group"
"""On a pod of a job with a gang: the name of its group object."""

ANNOTATION_INSPECTION = f"{GROUP}/inspection"
"""On a DDPJob: a question of a user to the ranks, see `inspections`."""

# --- Inside a worker container --------------------------------------------------------------------

WORKER_CONTAINER = "worker"
POD_INFO_DIR = "/etc/ddp-trainer"
"""Mount path of the downward-API volume."""
ATTEMPT_FILE = "attempt"
"""File in `POD_INFO_DIR` into which the kubelet copies the attempt annotation."""
CHECKPOINT_MOUNT = "/checkpoints"
HISTORY_FILE = "history.jsonl"
"""File in the run's directory to which global rank 0 appends its events, one JSON object a line."""
PROFILE_REQUEST = "PROFILE.json"
"""Request file in the run's directory. It is JSON with `steps`, the number of updates to profile
(default 1), and `from`, the first update (default: the next one)."""
PROFILES = "profiles"
"""Folder for profiles in the run's directory."""
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_MESSAGE_BYTES = 4096
"""Maximum size of a termination message, in bytes. The kubelet truncates longer ones."""

AGENT_PORT = 8470
"""Port of the agent's HTTP endpoints /healthz, /readyz, /metrics, /status, /attempt and
/inspection."""
BARRIER_PORT = 8471
"""Port of node 0's agent for other agents. They connect at the start barrier of each attempt, and
to send a notice when the operator has not read their new status."""
LONGEST_WAIT_SECONDS = 30.0
"""Maximum time, in seconds, that the agent holds a long poll of `/status` open."""
RENDEZVOUS_PORT_BASE = 29400
RENDEZVOUS_PORT_COUNT = 64


def rendezvous_port(base: int, attempt: int) -> int:
    """Return the port of the c10d store of an attempt.

    Consecutive attempts use different ports, so that a node that starts attempt k+1 cannot connect
    to the store of attempt k while that store shuts down.
    """
    return base + attempt % RENDEZVOUS_PORT_COUNT
