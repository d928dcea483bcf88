"""Documents that operator, agent and trainer exchange, as JSON with camelCase names.

A rank writes its heartbeat into a file. The agent reads the heartbeats of its node and serves its
own status to the operator. The operator sends attempt orders to the agents. A reader ignores
unknown fields and gives missing fields a default, so that neighbouring releases understand each
other. The operator does not trust agents: the models limit all numbers and texts.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from ddp_wire import node_ranges
from ddp_wire.families import UPDATE_SECONDS_BUCKETS
from ddp_wire.orders import Order
from ddp_wire.plain_text import PlainLines, PlainText
from ddp_wire.wire_model import Number, Seconds, Text, UnixSeconds, WireModel


class RankPhase(StrEnum):
    """Phase of a rank within an attempt."""

    STARTING = "Starting"
    """The process runs, but its process group is not initialised yet."""
    TRAINING = "Training"
    """The rank is in the attempt's process group: it trains, evaluates or saves."""
    DONE = "Done"


METRICS = 32
"""Maximum number of metrics that an agent passes on, because tasks and scripts choose them."""
METRIC_NAME_CHARACTERS = 128
"""Maximum length of their names."""
LOSS_PARTS = 16
"""Maximum number of named parts of a loss."""


class Straggler(WireModel):
    """A rank that is slower than the others, so that they wait for it in every update."""

    rank: Number
    ratio: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]
    """Time of the rank's data wait and forward pass, as a multiple of the median rank's time."""
    part: Annotated[PlainText, Field(max_length=32)]
    """Part of an update in which the rank loses most time: `data` or `forward pass`."""


class Progress(WireModel):
    """Progress of a run, as global rank 0 reports it."""

    step: Number = 0
    """Completed updates since the start of the run, over all attempts."""
    total_steps: Number | None = None
    epoch: Number | None = None
    """Number of the current pass over the data, from 1. It is 0 before the first update."""
    loss: float | None = None
    """Mean training loss per counted unit (sample or token) since the last report."""
    loss_parts: dict[Text, float] | None = None
    """Means of the named parts of that loss, at most `LOSS_PARTS`. None without parts."""
    samples_per_second: float | None = None
    """Samples per second over all ranks since the last report."""
    eta_seconds: Number | None = None
    metrics: dict[Text, float] = Field(default_factory=dict)
    """Results of the newest evaluation, by metric name. An agent passes on the first `METRICS`."""
    learning_rate: float | None = None
    grad_norm: float | None = None
    """Norm of the newest gradient. None if the trainer does not measure it."""
    allreduce_seconds: float | None = None
    """Seconds of the all-reduce of the gradients in the newest update that DDP measured."""
    allreduce_overlap_seconds: float | None = None
    """Part of `allreduce_seconds` in which the backward pass still computed."""
    straggler: Straggler | None = None
    checkpoint_unwritten_seconds: float | None = None
    """Seconds since the checkpoint that is being written in the background was due. 0 if the newest
    one is written, None if none was written in the background."""
    mirror_step: Number | None = None
    """Updates in the newest copy of a checkpoint in the object store. None without a mirror."""
    mirror_behind_seconds: float | None = None
    """Seconds since the oldest checkpoint that the object store lacks was committed."""


class CheckpointInfo(WireModel):
    """The newest committed checkpoint."""

    step: Number
    path: Text
    at: UnixSeconds
    interval_seconds: Seconds | None = None
    """Seconds until the next one is due. None if no clock decides, and from an older trainer."""


class RankTimes(WireModel):
    """Seconds that a rank has spent on each kind of work since the start of its attempt."""

    updates: Annotated[list[Number], Field(max_length=len(UPDATE_SECONDS_BUCKETS) + 1)] = Field(
        default_factory=list
    )
    """Number of updates in each bucket of `UPDATE_SECONDS_BUCKETS`, then the number of longer
    ones."""
    update_seconds: float = 0.0
    """Seconds of all updates, without evaluations and checkpoints."""
    data_wait_seconds: float = 0.0
    """Seconds in which the rank waited for a batch. `update_seconds` includes them."""
    checkpoint_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the process."""
    phase_seconds: Annotated[dict[Text, float], Field(max_length=8)] = Field(default_factory=dict)
    """Seconds of each phase of the newest measured update."""
    memory_bytes: Number | None = None
    """GPU memory that the rank's tensors use, in bytes. None without a GPU."""


class TrainingTimes(WireModel):
    """Seconds that global rank 0 has spent on each kind of work since its attempt's first update.

    The sum of these times is the time from the end of the first update to the end of the newest
    one, or to the end of a later evaluation or checkpoint.
    """

    step: Number | None = None
    """Updates done when these times were measured. The heartbeat's own step can be newer. An older
    trainer does not report it."""
    training_seconds: Seconds = 0.0
    """Seconds of updates and evaluations, without the waits for data."""
    data_wait_seconds: Seconds = 0.0
    """Seconds in which the rank waited for a batch."""
    checkpoint_seconds: Seconds = 0.0


class Heartbeat(WireModel):
    """Newest sign of progress of a rank: one JSON file per local rank, replaced by rename."""

    attempt: Number
    rank: Number
    local_rank: Number
    phase: RankPhase
    step: Number = 0
    at: UnixSeconds
    pid: Number | None = None
    """Process id of the rank in the PID namespace of its container."""
    joined_at: UnixSeconds | None = None
    """Unix seconds at which the rank joined the attempt's process group."""
    first_step_at: UnixSeconds | None = None
    """Unix seconds at which the rank completed the first update of the attempt."""
    resumed_from: Number | None = None
    """Step of the checkpoint from which this attempt resumed."""
    activity: Annotated[PlainText, Field(max_length=32)] | None = None
    """Part of the run in which the rank is, for example `checkpoint`. The agent adds it."""
    idle_seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    """Seconds since the rank's last progress, when the agent read its record. The agent adds it."""
    result: Number | None = None
    """Exit code that a rank in phase Done is about to have, after all ranks have saved their work.
    An older trainer does not report it."""
    progress: Progress | None = None
    """Progress of the run. Only global rank 0 reports it."""
    checkpoint: CheckpointInfo | None = None
    """Newest checkpoint of the run. Only global rank 0 reports it."""
    training_times: TrainingTimes | None = None
    """Times of the run since the attempt's first update. Only global rank 0 reports them."""


class LocalHeartbeat(Heartbeat):
    """Heartbeat as a rank writes it for its agent. Agents do not pass on the fields below."""

    times: RankTimes | None = None
    """Times for the agent's metrics."""


INSPECTED_COLLECTIVES = 16
"""Maximum number of collectives in an inspection."""


class RankInspection(WireModel):
    """State of a rank that makes no progress, as a thread of its process answers the agent."""

    waits: bool
    """Whether the stack shows the training thread waiting in a collective."""
    compiles: bool = False
    """Whether the stack shows the training thread compiling the model."""
    stack: Annotated[PlainLines, Field(max_length=4096)] = ""
    """Stack of the training thread, innermost call last."""
    number: Number | None = None
    """Number of the newest collective of the default process group that the rank has begun, from
    torch's flight recorder. All ranks number their collectives equally. None without a record."""
    collectives: Annotated[
        list[Annotated[PlainText, Field(max_length=128)]], Field(max_length=INSPECTED_COLLECTIVES)
    ] = Field(default_factory=list)
    """Names and sizes of the newest collectives. The last one is the one that `number` counts."""


class HungRank(WireModel):
    """State of a rank while at least one rank of its node makes no progress."""

    rank: Number
    step: Number
    """Updates done."""
    activity: Annotated[PlainText, Field(max_length=32)]
    """Part of the run in which the rank is, for example `backward`."""
    seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
    """Seconds since the rank's last progress."""
    overdue: bool = True
    """Whether the rank exceeds the limit that ends an attempt. Otherwise it is only a suspect."""
    blocked: Annotated[PlainText, Field(max_length=256)] = ""
    """Reason why the kernel does not run the rank's process or one of its descendants. Empty if the
    kernel runs them all."""
    inspection: RankInspection | None = None
    """Answer of the rank's process to the agent. None if the process did not answer."""


class ExitProblem(WireModel):
    """A rank that has done its work, and then did not exit, or crashed while it exited."""

    rank: Number | None = None
    """Global rank of the process. None for the launcher of the ranks."""
    message: Annotated[PlainText, Field(max_length=512)]
    """A sentence about the rank without its subject, for example `did not exit`."""
    stack: Annotated[PlainLines, Field(max_length=4096)] = ""
    """Stacks of the rank's threads, innermost call first, or the end of a traceback."""


EXIT_PROBLEMS = 8
"""Maximum number of exit problems of one node in its agent's status."""


class Failure(WireModel):
    """Reason why an attempt failed on one node."""

    attempt: Number
    at: UnixSeconds
    rank: Number | None = None
    exit_code: Number | None = None
    """Exit code of the rank. Absent if a signal ended it."""
    signal: Text | None = None
    """Name of the signal that ended the rank, for example SIGKILL."""
    message: Annotated[PlainText, Field(max_length=1024)] = ""
    """One sentence. For an exception, the first line of its text."""
    traceback: Annotated[PlainLines, Field(max_length=4096)] = ""
    """End of the traceback."""
    out_of_memory: bool = False
    """Whether the kernel killed a process of this container at its memory limit."""
    secondary: bool = False
    """Whether the rank failed only because it lost a peer. Never the root cause."""
    network: bool | None = None
    """Whether no rank started on this node, because it could not reach node 0 over the network."""
    replaced_node: Number | None = None
    """Node whose pod was replaced after the start. Only node 0's agent sees it."""


class AgentPhase(StrEnum):
    """Phase of an agent within the attempt that it reports."""

    WAITING = "Waiting"
    """The agent waits for an attempt order, or at the start barrier for the other agents."""
    STARTING = "Starting"
    """torchrun runs, but not all local ranks train yet."""
    TRAINING = "Training"
    """Every local rank is in the process group. Only in this phase is the pod ready."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    """The attempt failed on this node. The agent waits for the next one."""
    PREEMPTED = "Preempted"
    """The operator or Kubernetes asked the ranks to stop, and they had time to save first."""


class Timeline(WireModel):
    """Milestones of an attempt on one node, in unix seconds of that node's clock.

    The differences between them are the parts of a recovery time.
    """

    noticed: UnixSeconds | None = None
    """The agent noticed that the previous attempt had failed here. Absent if it had not."""
    ordered: UnixSeconds
    """The agent received the attempt order."""
    cleared: UnixSeconds | None = None
    """All processes of the previous attempt had ended."""
    launched: UnixSeconds | None = None
    """The agent forked or started torchrun."""
    spawned: UnixSeconds | None = None
    """The rendezvous was complete and torchrun had started the local ranks."""
    joined: UnixSeconds | None = None
    """Every local rank had joined the process group."""
    stepped: UnixSeconds | None = None
    """Every local rank had completed its first update."""


class InspectionRequest(WireModel):
    """Request of the operator to an agent's `/inspection`, for a user who asked."""

    job_uid: str
    question: Annotated[str, Field(max_length=64)]
    """Value of the annotation of the DDPJob, see `inspections`."""


class AttemptOrder(WireModel):
    """Request of the operator to an agent's `/attempt` to start a new attempt.

    The operator sends it after it has written the attempt to the job's status. The pod annotation
    carries the same order (`orders`), but reaches the agent later, through the kubelet.
    """

    job_uid: str
    attempt: Annotated[int, Field(ge=1)]
    members: Annotated[str, Field(max_length=32768)] | None = None
    """Nodes that train, as `node_ranges`. None for all nodes for which the pods were created."""
    save: bool | None = None
    """Whether the ranks that run save at the next step boundary before they stop. None for no."""

    @classmethod
    def of(cls, job_uid: str, order: Order) -> "AttemptOrder":
        """Return the request that carries an order to the agents of a job."""
        members = None if order.members is None else node_ranges.to_text(order.members)
        return cls(job_uid=job_uid, attempt=order.attempt, members=members, save=order.save or None)

    @property
    def order(self) -> Order:
        """Return the order.

        Raises:
            ValueError: The members are no node ranges, or there are none.
        """
        if self.members is None:
            return Order(self.attempt)
        members = node_ranges.from_text(self.members)
        if not members:
            raise ValueError("an attempt must have at least one member, got none")
        return Order(self.attempt, members, save=bool(self.save))


class AgentStatus(WireModel):
    """Document that an agent serves at `/status` and writes as its termination message."""

    job_uid: Text = ""
    """UID of the agent's job: the address may belong to a pod of another job by now."""
    revision: Number = 0
    """Number of published changes. `/status?revision=N&wait=S` waits up to S seconds until the
    revision is not N."""
    unread_notices: Number | None = Field(default=None, alias="news")  # Older releases read "news".
    """Number of notices of an unread status that other nodes' agents have sent to node 0's agent.
    Only node 0's agent counts them. An older one does not, and its value is None."""
    node_index: Number
    attempt: Number
    members: Annotated[PlainText, Field(max_length=32768)] | None = None
    """Members of the attempt, as `node_ranges`. None before the first order, and from an older
    agent, which understands no order with members."""
    warm: bool | None = None
    """Whether the node could start an attempt at once: the imports of its standby have ended, or it
    needs none. An older agent does not report it."""
    phase: AgentPhase
    since: UnixSeconds
    """Unix seconds at which this phase started."""
    command: list[PlainText] = Field(default_factory=list)
    """torchrun command line of this attempt."""
    timeline: Timeline | None = None
    ranks: list[Heartbeat] = Field(default_factory=list)
    progress: Progress | None = None
    checkpoint: CheckpointInfo | None = None
    failure: Failure | None = None
    exit_problems: Annotated[list[ExitProblem], Field(max_length=EXIT_PROBLEMS)] | None = None
    """Ranks of this node that finished their work, but did not exit cleanly."""
    hang: Annotated[list[HungRank], Field(max_length=1024)] | None = None
    """All ranks of this node while at least one of them makes no progress. None otherwise."""
    kept_step: Number | None = None
    """Update after which this node has kept the state of the run in memory at the end of the
    attempt. None if it has not, and from an older agent."""
    kept_part_step: Number | None = None
    """Update after which all ranks of this node have kept their parts of the state in memory. The
    state is whole only with the parts of all nodes. None if they have not."""
    waits_for: Annotated[str, Field(max_length=512)] | None = None
    """Reason why this node has not started its attempt for at least 15 s. None otherwise."""
