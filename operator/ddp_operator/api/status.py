"""Define the models of `DDPJob.status`."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    Field,
    StringConstraints,
    field_validator,
)

from ddp_operator.api.base import StatusModel
from ddp_operator.api.gang import GangStatus
from ddp_operator.api.goodput import GoodputStatus
from ddp_operator.api.init import InitStatus
from ddp_operator.api.members import RESIZED, DepartureStatus, NodeRanges, ResizeStatus
from ddp_operator.api.recovery import RecoveryStatus
from ddp_wire.plain_text import PlainLines, PlainText

ShortText = Annotated[PlainText, StringConstraints(max_length=1024)]
LongText = Annotated[PlainText, StringConstraints(max_length=32768)]
Seconds = Annotated[int, Field(ge=0)]
LongLines = Annotated[PlainLines, StringConstraints(max_length=32768)]


class ConditionType(StrEnum):
    """Type of a condition of a DDPJob."""

    SUCCEEDED = "Succeeded"
    """Unknown while the job is active, True when it completed, False when it failed."""
    PODS_READY = "PodsReady"
    """All pods of the job are ready because their ranks are training."""
    RENDEZVOUSED = "Rendezvoused"
    """All ranks of the current attempt have joined one process group."""
    CHECKPOINTED = "Checkpointed"
    """At least one checkpoint has been committed."""
    GANG_SCHEDULED = "GangScheduled"
    """The gang scheduler has placed the pods of the job together."""
    CLAIM_BOUND = "ClaimBound"
    """The claim of checkpoint.claimTemplate has its volume. The message states why the claim waits, or does not grow."""  # noqa: E501
    SUSPENDED = "Suspended"
    """spec.suspend has stopped the run, and its pods are deleted."""
    COMPLETE = "Complete"
    """The job completed, in the format of a batch/v1 Job. Present only after the end of the job."""
    FAILED = "Failed"
    """The job failed for good, in the format of a batch/v1 Job. Present only after the end of the job."""  # noqa: E501
    READY = "Ready"
    """The cluster does what the spec wants: all ranks train, or the job completed or is suspended. kstatus reads this condition, Reconciling and Stalled."""  # noqa: E501
    RECONCILING = "Reconciling"
    """The job waits, starts, recovers or stops for a suspension. Present only while True."""
    STALLED = "Stalled"
    """The job failed for good or is invalid, so that only a user can help. Present only while True."""  # noqa: E501


class ConditionStatus(StrEnum):
    """Value of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(StatusModel):
    """One observation about the job, in the format of metav1.Condition."""

    type: ConditionType
    """Type of the condition."""
    status: ConditionStatus
    """Value of the condition: True, False or Unknown."""
    reason: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=256)
    ]
    """Reason for the value, as one CamelCase word."""
    message: LongText = ""
    """Reason for the value, as a sentence."""
    last_transition_time: datetime
    """Time at which the value last changed."""
    observed_generation: int | None = None
    """Generation of the spec that the condition describes."""


class ProgressStatus(StatusModel):
    """Progress of the training run."""

    summary: ShortText = ""
    """Progress as text for people: 60/120 (50%)."""
    step: int = 0
    """Number of completed updates (optimizer steps)."""
    total_steps: int | None = None
    """Number of updates of the whole run."""
    epoch: int | None = None
    """Number of the current pass over the training data, from 1."""
    loss: ShortText | None = None
    """Newest training loss, as a decimal number."""
    samples_per_second: int | None = None
    """Throughput in samples per second, over all ranks."""
    eta_seconds: int | None = None
    """Estimated seconds until the end of the run."""
    metrics: Annotated[dict[str, ShortText], Field(max_length=32)] | None = None
    """Metrics of the newest evaluation by name, as decimal numbers."""
    time: datetime | None = None
    """Time at which the rank reported this progress."""


class CheckpointStatus(StatusModel):
    """Newest committed checkpoint."""

    step: int
    """Number of completed updates in the checkpoint."""
    path: ShortText
    """Directory of the checkpoint, as a path inside the pods."""
    time: datetime
    """Time at which the checkpoint was committed."""
    interval_seconds: int | None = None
    """Seconds between two checkpoints, as spec.checkpoint.everySeconds sets them or the bundled loop chose them. Absent if no clock decides."""  # noqa: E501


class Cause(StrEnum):
    """Class of a fault, which selects the budget for the next restart."""

    APPLICATION = "Application"
    """Failure of the code, the data or the memory limit. The restart uses one of spec.maxRestarts."""  # noqa: E501
    INFRASTRUCTURE = "Infrastructure"
    """Loss of a pod, Kubernetes node or volume. The restart uses one of spec.maxInfrastructureRestarts."""  # noqa: E501
    FREE = "Free"
    """Requested end: preemption, drain, suspend or a changed spec. The restart uses no budget."""


class FailureStatus(StatusModel):
    """Root cause of the failure that ended an attempt."""

    attempt: int
    """Number of the attempt that the failure ended."""
    reason: ShortText
    """Kind of the failure: RankFailed, Hung, OOMKilled, BadInput, VolumeFailed, SilentCorruption, ReplicasDiffer, NetworkFailed, PodLost, PeerLost, PodFailed, InitContainerFailed, InitFailed, Preempted, or Kubernetes' own reason, for example Evicted."""  # noqa: E501
    cause: Cause = Cause.APPLICATION
    """Class of the failure: Application, Infrastructure or Free. It selects the budget of the restart; Free uses none."""  # noqa: E501
    pod: ShortText | None = None
    """Name of the failed pod."""
    node: ShortText | None = None
    """Name of the Kubernetes node of the failed pod."""
    rank: int | None = None
    """Number of the global rank that failed first."""
    exit_code: int | None = None
    """Exit code of the failed rank or container."""
    signal: ShortText | None = None
    """Signal that ended the failed rank, for example SIGKILL."""
    message: LongText = ""
    """Description of the failure, as a sentence."""
    traceback: LongLines | None = None
    """Last lines of the traceback."""
    time: datetime
    """Time of the failure."""


class AttemptStatus(StatusModel):
    """One attempt that has ended."""

    number: int
    """Number of the attempt, from 1."""
    start_time: datetime | None = None
    """Time at which the operator decided on the attempt."""
    end_time: datetime
    """Time at which the attempt ended."""
    cause: Cause | None = None
    """Class of the fault: Application, Infrastructure or Free. Absent when the run completed or exceeded a deadline."""  # noqa: E501
    reason: ShortText
    """Reason for the end, as one word: a reason of lastFailure, or Completed, Suspended, SpecChanged or GangReplaced."""  # noqa: E501
    message: Annotated[PlainText, StringConstraints(max_length=256)] = ""
    """Description of the end, as a sentence of at most 256 characters."""
    start_step: int | None = None
    """Completed updates in the newest checkpoint at the start of the attempt."""
    end_step: int | None = None
    """Completed updates in the newest checkpoint at the end of the attempt."""


class StrikeStatus(StatusModel):
    """Strikes against one Kubernetes node. An attempt adds a strike if it ended on the node by a hang, by silent corruption or without progress."""  # noqa: E501

    node: ShortText
    """Name of the Kubernetes node."""
    count: int
    """Number of attempts that ended on the Kubernetes node by a hang, by silent corruption or without progress. From 2 on, new pods prefer other Kubernetes nodes. The strikes expire 24 hours after the newest one."""  # noqa: E501
    last_time: datetime
    """Time at which the newest of these attempts ended."""


class StragglerStatus(StatusModel):
    """Rank that is slower than the other ranks, so that they wait for it in every update."""

    rank: int
    """Global rank."""
    pod: ShortText
    """Name of the rank's pod."""
    node: ShortText | None = None
    """Name of the Kubernetes node of the pod."""
    ratio: ShortText
    """Time that the rank needs for its data and forward pass, as a multiple of the time of the median rank: 1.4."""  # noqa: E501
    part: ShortText
    """Part of the update in which the rank loses most time: data or forward pass."""


class SuspectStatus(StatusModel):
    """Rank that makes no progress while the other ranks wait for it. It may hang, or only be slow."""  # noqa: E501

    rank: int
    """Global rank."""
    pod: ShortText
    """Name of the rank's pod."""
    node: ShortText | None = None
    """Name of the Kubernetes node of the pod."""
    activity: ShortText
    """Current activity of the rank: data, hook, forward, backward, optimizer, exchange, replicas, evaluation or checkpoint."""  # noqa: E501
    step: int
    """Number of updates that the rank has completed."""
    message: Annotated[str, StringConstraints(max_length=2048)]
    """Description of the rank's activity, as a sentence."""
    since: datetime
    """Time of the rank's last progress, by the operator's clock."""


class PodsStatus(StatusModel):
    """Settings that all pods of an attempt share. They change only when the operator replaces all pods together."""  # noqa: E501

    nodes: int
    """Number of worker pods."""
    image: ShortText
    """Container image of the worker pods."""
    image_pull_policy: ShortText = "IfNotPresent"
    """Rule for when the kubelet pulls the image."""
    code_hash: ShortText | None = None
    """Hash of the code that `ddpjob submit --code` shipped to the pods. Absent without it."""
    checkpoint_directory: ShortText | None = None
    """Directory of the checkpoints, as CLAIM/PATH. Another job that names this directory in checkpoint.path starts only after this job has ended."""  # noqa: E501
    gang: GangStatus | None = None
    """Gang of the pods. Absent if the scheduler places each pod on its own."""
    first_port: int | None = None
    """First of the ports that the operator has allocated to the job on each Kubernetes node. Absent without network.hostNetwork, and once all pods have ended."""  # noqa: E501
    gpu_product: ShortText | None = None
    """GPU product of all later pods: a value of the label that spec.gpuProduct refers to. The operator chooses it when pods of a job without spec.gpuProduct were placed on different products. Absent before."""  # noqa: E501


class QueueStatus(StatusModel):
    """Time in which a scheduling gate, a queue or a quota held the pods while no rank trained. This time counts against no deadline."""  # noqa: E501

    since: datetime | None = None
    """Time at which the operator first saw that the pods are held. Absent while nothing holds them."""  # noqa: E501
    attempt_seconds: Seconds = 0
    """Seconds for which pods were held in the current attempt. They do not count against startupDeadlineSeconds."""  # noqa: E501
    job_seconds: Seconds = 0
    """Seconds for which pods were held since startTime. They do not count against activeDeadlineSeconds."""  # noqa: E501


class DDPJobStatus(StatusModel):
    """Observed state of the job."""

    observed_generation: int | None = None
    """Generation of the spec that this status describes."""
    attempt: int = 0
    """Number of the current attempt, from 1. An attempt is one run of all ranks together. 0 means that no attempt has started."""  # noqa: E501
    attempt_start_time: datetime | None = None
    """Time at which the operator decided on the current attempt."""
    attempt_spec_hash: ShortText | None = None
    """Hash of the spec fields that affect the pods, for the current attempt."""
    trained_spec_hash: ShortText | None = None
    """Hash of the newest spec with which the ranks completed an update or trained for a minute."""
    refused_spec_hash: ShortText | None = None
    """Hash of a changed spec that the trainer refused with exit code 2. The job waits until the spec is edited again."""  # noqa: E501
    attempt_start_step: int | None = None
    """Completed updates in the newest checkpoint at the start of the current attempt."""
    pods: PodsStatus | None = None
    """Settings that all pods of the current attempt share, so that an upgrade of the operator cannot mix two images. Absent for a job that an older operator started."""  # noqa: E501
    members: NodeRanges | None = None
    """Nodes that train in the current attempt, for example 0-2,5. Pods of other nodes wait. Absent for a job that an older operator started: then all nodes train."""  # noqa: E501
    resizes: int = 0
    """Number of changes of the members. These changes use no budget."""
    last_resize: ResizeStatus | None = None
    """Last change of the members of an elastic job."""
    departures: Annotated[list[DepartureStatus], Field(max_length=32)] = Field(default_factory=list)
    """Kubernetes nodes on which a member was lost within the last hour, at most 32, newest last."""
    mixed_images: bool | None = None
    """True if the pods of the current attempt run different images, because a tag has moved. An Event names the images."""  # noqa: E501
    succeeded_nodes: NodeRanges | None = None
    """Nodes whose ranks all exited with code 0 in the current attempt, for example 0-2,7. Their pods may be deleted."""  # noqa: E501
    restarts: int = 0
    """Number of restarts after application failures. They count against spec.maxRestarts."""
    recent_failures: Annotated[list[datetime], Field(max_length=32)] = Field(default_factory=list)
    """Times of the newest application failures, at most 32, newest last. spec.restartWindowSeconds applies to them."""  # noqa: E501
    infrastructure_restarts: int = 0
    """Number of restarts after losses of pods, Kubernetes nodes or volumes. They count against spec.maxInfrastructureRestarts."""  # noqa: E501
    free_restarts: int = 0
    """Number of restarts that use no budget: after preemption, drain, suspension or a changed spec."""  # noqa: E501
    stalled_attempts: int = 0
    """Number of successive attempts that ended without a new committed checkpoint. The third one fails the job."""  # noqa: E501
    attempts_without_progress: int = 0
    """Number of successive attempts that ended without progress: no new checkpoint, and less than 60 s of training. From the second one on, the next attempt waits 1, 2, 4 … 300 s."""  # noqa: E501
    next_action: ShortText | None = None
    """Next action of the operator, or the event that it waits for."""
    init: InitStatus | None = None
    """Progress of the steps of spec.init. Absent without steps."""
    start_time: datetime | None = None
    """Time at which the operator started the job or last resumed it."""
    queue: QueueStatus | None = None
    """Time in which a scheduling gate, a queue or a quota held pods of the job. Absent if no pod was ever held."""  # noqa: E501
    completion_time: datetime | None = None
    """Time at which the job completed or failed."""
    ready: ShortText | None = None
    """Number of pods in training, out of all pods of the job: 2/2."""
    spares: ShortText | None = None
    """Number of spares that could take the place of a lost node at once, out of all spares: 1/1."""
    replicas: int = 0
    """Number of existing pods, for the scale subresource."""
    selector: ShortText | None = None
    """Label selector of the pods, for the scale subresource."""
    first_pod: ShortText | None = None
    """Name of the pod of node 0, whose log has the output of rank 0. Absent if it is NAME-0."""
    progress: ProgressStatus | None = None
    """Progress of the run."""
    straggler: StragglerStatus | None = None
    """Rank that is now slower than the other ranks, so that they wait for it in every update."""
    suspect: SuspectStatus | None = None
    """Rank that now makes no progress while the other ranks wait for it. spec.hang limits how long this may last."""  # noqa: E501
    resumed_from_step: int | None = None
    """Completed updates in the checkpoint from which the current attempt started."""
    last_checkpoint: CheckpointStatus | None = None
    """Newest committed checkpoint."""
    last_failure: FailureStatus | None = None
    """Root cause of the newest failure of an attempt."""
    last_recovery: RecoveryStatus | None = None
    """Timeline of the last recovery. Each value is the milliseconds from the fault to the end of one step of the recovery."""  # noqa: E501
    goodput: GoodputStatus | None = None
    """Ledger of the job's wall-clock time: each millisecond is in exactly one bucket. Absent for a job that finished under an older operator."""  # noqa: E501
    attempts: Annotated[list[AttemptStatus], Field(max_length=10)] = Field(default_factory=list)
    """Attempts that ended last, at most 10, newest last."""
    strikes: Annotated[
        list[StrikeStatus],
        Field(
            max_length=32,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["node"],
            },
        ),
    ] = Field(default_factory=list)
    """Strikes against Kubernetes nodes: attempts that ended there by a hang, by silent corruption or without progress."""  # noqa: E501
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ] = Field(default_factory=list)
    """Observations about the job, at most one for each type."""

    @field_validator("conditions", mode="before")
    @classmethod
    def _drop_unknown_conditions(cls, value: Any) -> Any:
        """Drop conditions of unknown types, because another version may have written them."""
        if not isinstance(value, list):
            return value
        known = {kind.value for kind in ConditionType}
        return [c for c in value if not isinstance(c, dict) or c.get("type") in known]

    @property
    def saves_before_attempt(self) -> bool:
        """Return whether the ranks of the previous attempt save before they stop.

        They save if that attempt had no fault and ended because its members changed.
        """
        last = self.attempts[-1] if self.attempts else None
        return last is not None and last.number == self.attempt - 1 and last.reason == RESIZED

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of a type, or None if it has not been set."""
        return next((c for c in self.conditions if c.type == kind), None)

    def is_true(self, kind: ConditionType) -> bool:
        """Return whether a condition is set and True."""
        found = self.condition(kind)
        return found is not None and found.status is ConditionStatus.TRUE
