"""`DDPJob.status`: everything the operator knows about a run."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator

from ddp_operator.api.base import StatusModel

Short = Annotated[str, StringConstraints(max_length=1024)]
Long = Annotated[str, StringConstraints(max_length=32768)]


class ConditionType(StrEnum):
    """The conditions of a DDPJob."""

    SUCCEEDED = "Succeeded"
    """Summary: Unknown while active, True when completed, False when failed."""
    PODS_READY = "PodsReady"
    """Every pod's agent reports that its ranks train."""
    RENDEZVOUSED = "Rendezvoused"
    """In the current attempt all ranks have been in one process group."""
    CHECKPOINTED = "Checkpointed"
    """A whole checkpoint has been committed."""
    SUSPENDED = "Suspended"
    """The run is stopped by spec.suspend and its pods are gone."""


class ConditionStatus(StrEnum):
    """Value of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(StatusModel):
    """One observation about the job, as metav1.Condition."""

    type: ConditionType
    """What is observed."""
    status: ConditionStatus
    """Whether it holds."""
    reason: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=256)
    ]
    """Why, in one CamelCase word."""
    message: Long = ""
    """Why, in a sentence."""
    last_transition_time: datetime
    """When the status last changed."""
    observed_generation: int | None = None
    """The generation of the spec that this speaks of."""


class ProgressStatus(StatusModel):
    """How far the run is."""

    summary: Short = ""
    """For people: 60/120 (50%)."""
    step: int = 0
    """Updates done."""
    total_steps: int | None = None
    """Updates in all."""
    epoch: int | None = None
    """Current pass over the data, from 1."""
    loss: Short | None = None
    """Training loss, as a decimal number."""
    samples_per_second: int | None = None
    """Throughput of the whole job."""
    eta_seconds: int | None = None
    """Estimated seconds until the end."""
    metrics: Annotated[dict[str, Short], Field(max_length=32)] | None = None
    """Newest evaluation by name, as decimal numbers."""
    time: datetime | None = None
    """When this was reported."""


class CheckpointStatus(StatusModel):
    """The newest committed checkpoint."""

    step: int
    """Updates done in it."""
    path: Short
    """Its directory, as the pods see it."""
    time: datetime
    """When it was committed."""


class Cause(StrEnum):
    """Whose fault the end of an attempt was, and so which budget it costs."""

    APPLICATION = "Application"
    """Code, data or memory of the run: costs one of spec.maxRestarts."""
    INFRASTRUCTURE = "Infrastructure"
    """A pod or its node was lost: costs one of spec.maxInfrastructureRestarts."""
    FREE = "Free"
    """Somebody wished it so: costs nothing."""


class FailureStatus(StatusModel):
    """Why an attempt ended."""

    attempt: int
    """The attempt that it ended."""
    reason: Short
    """Class of the cause: RankFailed, OOMKilled, PodLost, PodFailed, BadInput, Preempted, or Kubernetes' own word, as Evicted."""  # noqa: E501
    cause: Cause = Cause.APPLICATION
    """Whose fault it was: Application, Infrastructure or Free, which names the budget that it costs."""  # noqa: E501
    pod: Short | None = None
    """The pod."""
    node: Short | None = None
    """The Kubernetes node that it ran on."""
    rank: int | None = None
    """The global rank that fell first."""
    exit_code: int | None = None
    """Its exit code."""
    signal: Short | None = None
    """The signal that ended it."""
    message: Long = ""
    """The cause in a sentence."""
    traceback: Long | None = None
    """Tail of the traceback."""
    time: datetime
    """When it happened."""


class RecoveryStatus(StatusModel):
    """Where the time of a recovery went. Milliseconds count from the fault, up to where the last node was through; they compare clocks of several machines."""  # noqa: E501

    attempt: int
    """The attempt that it led to."""
    fault: Annotated[str, StringConstraints(max_length=256)] = ""
    """What happened, in a sentence."""
    time: datetime
    """When it happened, as the first to see it says."""
    summary: Short | None = None
    """For people: 1.3 s: decided 0.10, told 0.15 … first step 1.30. Absent while it goes on."""
    noticed_milliseconds: int | None = None
    """An agent had seen a rank fall. Absent when a pod was lost, which the API server tells."""
    decided_milliseconds: int = 0
    """The operator had decided on the next attempt."""
    told_milliseconds: int | None = None
    """Every agent had learnt of the next attempt."""
    torn_down_milliseconds: int | None = None
    """Nothing of the attempt before was left on any node."""
    forked_milliseconds: int | None = None
    """Every node had started torchrun."""
    rendezvous_milliseconds: int | None = None
    """All nodes had met, and started their ranks."""
    process_group_milliseconds: int | None = None
    """Every rank was in the process group."""
    first_step_milliseconds: int | None = None
    """Every rank had done its first update: the run goes on."""

    @property
    def complete(self) -> bool:
        """Whether the recovery is over."""
        return self.first_step_milliseconds is not None


class AttemptStatus(StatusModel):
    """One attempt that has ended."""

    number: int
    """Its number."""
    start_time: datetime | None = None
    """When it was decided."""
    end_time: datetime
    """When it was over."""
    cause: Cause | None = None
    """Whose fault its end was; absent when the run completed or broke a deadline."""
    reason: Short
    """Why it ended, in one word: that of lastFailure, or Completed, Suspended, SpecChanged."""
    message: Annotated[str, StringConstraints(max_length=256)] = ""
    """Why it ended, in a sentence."""
    start_step: int | None = None
    """The newest saved update when it began."""
    end_step: int | None = None
    """The newest saved update when it ended."""


class StrikeStatus(StatusModel):
    """A Kubernetes node on which attempts ended without progress."""

    node: Short
    """Name of the node."""
    count: int
    """How many such attempts. From 2 on, new pods avoid the node where they can."""
    last_time: datetime
    """When the last one ended."""


class DDPJobStatus(StatusModel):
    """What has been observed of the job."""

    observed_generation: int | None = None
    """Generation of the spec that this status speaks of."""
    attempt: int = 0
    """Number of the current incarnation of the gang, from 1."""
    attempt_start_time: datetime | None = None
    """When the current attempt was decided."""
    attempt_spec_hash: Short | None = None
    """Hash of the part of the spec that the current attempt's pods are made of."""
    attempt_start_step: int | None = None
    """The newest saved update when the current attempt began."""
    restarts: int = 0
    """Attempts that the application failed and another one followed: they count against spec.maxRestarts."""  # noqa: E501
    recent_failures: Annotated[list[datetime], Field(max_length=32)] = Field(default_factory=list)
    """When the last of them ended, newest last: what spec.restartWindowSeconds looks at."""
    infrastructure_restarts: int = 0
    """Attempts that were lost with a pod or a node and another one followed: they count against spec.maxInfrastructureRestarts."""  # noqa: E501
    free_restarts: int = 0
    """Attempts that ended at no cost and another one followed: preemption, drain, suspension, a changed spec."""  # noqa: E501
    stalled_attempts: int = 0
    """How many attempts in a row ended without a newly saved update. The third fails the job."""
    next_action: Short | None = None
    """What the operator does next, or waits for."""
    start_time: datetime | None = None
    """When the operator took the job up, or resumed it."""
    completion_time: datetime | None = None
    """When the job completed or failed."""
    ready: Short | None = None
    """Pods that train, of pods wanted: 2/2."""
    replicas: int = 0
    """Pods that exist, for the scale subresource."""
    selector: Short | None = None
    """Label selector of the pods, for the scale subresource."""
    progress: ProgressStatus | None = None
    """How far the run is."""
    resumed_from_step: int | None = None
    """Update of the checkpoint that the current attempt started from."""
    last_checkpoint: CheckpointStatus | None = None
    """The newest committed checkpoint."""
    last_failure: FailureStatus | None = None
    """Why the last failed attempt ended."""
    last_recovery: RecoveryStatus | None = None
    """Where the time of the last recovery went."""
    attempts: Annotated[list[AttemptStatus], Field(max_length=10)] = Field(default_factory=list)
    """The last attempts that have ended, newest last."""
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
    """Kubernetes nodes on which attempts ended without progress."""
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
    """Observations by type."""

    @field_validator("conditions", mode="before")
    @classmethod
    def _known_conditions(cls, value: Any) -> Any:
        """Leave out types that only another version of the operator knows."""
        if not isinstance(value, list):
            return value
        known = {kind.value for kind in ConditionType}
        return [c for c in value if not isinstance(c, dict) or c.get("type") in known]

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of a type, or None when it has not been set."""
        return next((c for c in self.conditions if c.type == kind), None)

    def is_true(self, kind: ConditionType) -> bool:
        """Whether a condition is set and True."""
        found = self.condition(kind)
        return found is not None and found.status is ConditionStatus.TRUE
