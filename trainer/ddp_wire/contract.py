"""The wire contract between operator, agent and trainer: every name that two of them know.

Standard library and pydantic only, so that the operator can import it without torch and the trainer
without kopf. A name that stands here stands nowhere else.
"""

from enum import IntEnum, StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ddp_wire.variables import Env as Env  # noqa: PLC0414 (a part of the contract)

GROUP = "ddp-trainer.dev"

# --- Labels and annotations -----------------------------------------------------------------------

LABEL_JOB_NAME = f"{GROUP}/job-name"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_NODE_INDEX = f"{GROUP}/node-index"
LABEL_RACK = f"{GROUP}/rack"
"""On a pod: the rack of its node, where somebody tells it."""
LABEL_ZONE = "topology.kubernetes.io/zone"
"""On a pod: Kubernetes copies it from the node from 1.35 on (KEP-4742)."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "ddp-trainer"

ANNOTATION_ATTEMPT = f"{GROUP}/attempt"
"""On a pod: the number of the attempt that it shall run, or `ATTEMPT_STOP`."""
ATTEMPT_STOP = "stop"
"""The attempt annotation's value that tells an agent to end its ranks and exit."""
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
"""On a pod: hash of the part of the spec that it was made of."""

# --- Inside a worker container --------------------------------------------------------------------

WORKER_CONTAINER = "worker"
POD_INFO_DIR = "/etc/ddp-trainer"
"""Where the downward-API volume is mounted."""
ATTEMPT_FILE = "attempt"
"""The file in `POD_INFO_DIR` that follows the attempt annotation."""
CHECKPOINT_MOUNT = "/checkpoints"
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_MESSAGE_BYTES = 4096
"""The kubelet's own limit for a termination message."""

AGENT_PORT = 8470
"""HTTP: /healthz, /readyz, /status and /attempt of the agent."""
LONGEST_WAIT_SECONDS = 30.0
"""How long a request for news of `/status` is held at most."""
RENDEZVOUS_PORT_BASE = 29400
RENDEZVOUS_PORT_COUNT = 64


def rendezvous_port(base: int, attempt: int) -> int:
    """Port of the c10d store of one attempt.

    Consecutive attempts use different ports, so that a node that starts attempt k+1 can never
    reach the dying store of attempt k.
    """
    return base + attempt % RENDEZVOUS_PORT_COUNT


class ExitCode(IntEnum):
    """Exit codes of ranks and agents that mean something to the operator."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    """The run can never succeed as it was asked for: never retried."""
    PREEMPTED = 85
    """Stopped on request, after saving: costs no budget."""


# --- What is reported -----------------------------------------------------------------------------


class WireModel(BaseModel):
    """Base of everything that crosses a process boundary: camelCase outside.

    Unknown fields are ignored rather than refused, so that an operator and an agent of
    neighbouring versions understand each other.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", ser_json_inf_nan="strings"
    )

    def to_json(self) -> str:
        """This document as one line of JSON, without empty fields."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


class RankPhase(StrEnum):
    """What a rank is doing."""

    STARTING = "Starting"
    """The process runs; its process group is not up yet."""
    TRAINING = "Training"
    """In the process group of the attempt, stepping, evaluating or saving."""
    DONE = "Done"


class Progress(WireModel):
    """How far a run is, as global rank 0 sees it."""

    step: int = 0
    """Optimizer updates done since the run began, over all attempts."""
    total_steps: int | None = None
    epoch: int | None = None
    """Current pass over the data, from 1; 0 before the first update."""
    loss: float | None = None
    """Mean training loss per counted unit (sample, token) since the last report."""
    samples_per_second: float | None = None
    """Global samples per second since the last report."""
    eta_seconds: int | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    """Newest evaluation, by name."""


class CheckpointInfo(WireModel):
    """The newest committed checkpoint."""

    step: int
    path: str
    at: float
    """Unix seconds."""


class Beat(WireModel):
    """A rank's newest sign of life: one small JSON file per local rank, replaced by rename."""

    attempt: int
    rank: int
    local_rank: int
    phase: RankPhase
    step: int = 0
    at: float
    """Unix seconds."""
    pid: int | None = None
    """Process id of the rank, as its container sees it."""
    joined_at: float | None = None
    """Unix seconds at which the process group of the attempt was up."""
    first_step_at: float | None = None
    """Unix seconds at which the first update of the attempt was done."""
    resumed_from: int | None = None
    """Step of the checkpoint that this attempt started from."""
    progress: Progress | None = None
    """From global rank 0 only."""
    checkpoint: CheckpointInfo | None = None
    """From global rank 0 only."""


class Failure(WireModel):
    """Why an attempt ended on one node."""

    attempt: int
    at: float
    """Unix seconds."""
    rank: int | None = None
    exit_code: int | None = None
    """Exit code of the rank; absent when a signal ended it."""
    signal: str | None = None
    """Name of the signal that ended the rank, as SIGKILL."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """One sentence; for an exception the last line of its traceback."""
    traceback: Annotated[str, Field(max_length=4096)] = ""
    """Tail of the traceback."""
    out_of_memory: bool = False
    """The kernel ended a process of this container because its memory limit was reached."""
    secondary: bool = False
    """The rank fell because a peer had gone: the cause is elsewhere."""


class AgentPhase(StrEnum):
    """What an agent is doing about the attempt that it reports."""

    WAITING = "Waiting"
    """Waits until node 0's store accepts connections."""
    STARTING = "Starting"
    """torchrun runs; not all local ranks train yet."""
    TRAINING = "Training"
    """Every local rank is in the process group: the agent is ready."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    """The attempt ended here; the agent awaits the next one."""
    PREEMPTED = "Preempted"
    """Ranks saved and stopped on request."""


class Timeline(WireModel):
    """When an attempt got how far on one node; unix seconds by the node's clock.

    What a recovery is made of: between two of these lies what can be made faster.
    """

    noticed: float | None = None
    """A rank of the attempt before was seen to have fallen here; absent where none had."""
    ordered: float
    """The agent learnt that it shall run the attempt."""
    cleared: float | None = None
    """Nothing of the attempt before was left."""
    launched: float | None = None
    """torchrun was forked or started; all that went before was gone."""
    spawned: float | None = None
    """All nodes had met, and the local ranks were started."""
    joined: float | None = None
    """Every local rank was in the process group."""
    stepped: float | None = None
    """Every local rank had done its first update."""


class AttemptOrder(WireModel):
    """What the operator posts to an agent's `/attempt`, once it stands in the job's status.

    It only spares the annotation's way through the kubelet, which says the same and stays.
    """

    job_uid: str
    attempt: Annotated[int, Field(ge=1)]


class AgentStatus(WireModel):
    """The document behind an agent's `/status`; its last state is the termination message."""

    job_uid: str = ""
    """The job that it works for: an address may have come to another job's pod."""
    revision: int = 0
    """Counts what is news: `/status?revision=N&wait=S` answers once it is not N, or after S s."""
    node_index: int
    attempt: int
    phase: AgentPhase
    since: float
    """Unix seconds at which this phase began."""
    command: list[str] = Field(default_factory=list)
    """The torchrun line of this attempt."""
    timeline: Timeline | None = None
    ranks: list[Beat] = Field(default_factory=list)
    progress: Progress | None = None
    checkpoint: CheckpointInfo | None = None
    failure: Failure | None = None
