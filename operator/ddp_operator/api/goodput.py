"""Define the models of `DDPJob.status.goodput`, the ledger of a job's wall-clock time."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from ddp_operator.api.base import StatusModel

Milliseconds = Annotated[int, Field(ge=0)]
Steps = Annotated[int, Field(ge=0)]


class Bucket(StrEnum):
    """Bucket of the ledger. Each millisecond of a job's wall-clock time is in exactly one."""

    QUEUED = "queued"
    STARTING = "starting"
    RESTORING = "restoring"
    TRAINING = "training"
    DATA_WAIT = "data_wait"
    CHECKPOINT_STALL = "checkpoint_stall"
    REDONE = "redone"
    HANG = "hang"
    RECOVERING = "recovering"
    EXITING = "exiting"
    SUSPENDED = "suspended"

    @property
    def field(self) -> str:
        """Return the name of the bucket's field in `GoodputStatus`."""
        return f"{self}_milliseconds"


class CountedStatus(StatusModel):
    """Part of the current attempt's training that the buckets contain already."""

    step: Steps = 0
    """Completed updates of the run up to which the updates are counted."""
    training_milliseconds: Milliseconds = 0
    """Milliseconds of updates and evaluations that are counted, without the waits for data."""
    data_wait_milliseconds: Milliseconds = 0
    """Milliseconds of waits for data that are counted."""
    checkpoint_stall_milliseconds: Milliseconds = 0
    """Milliseconds of checkpoints that are counted."""


class GoodputStatus(StatusModel):
    """Ledger of the job's wall-clock time. The sum of all buckets is the time from metadata.creationTimestamp until the newest time that the operator has counted, at last completionTime. The operator counts time when it writes the status."""  # noqa: E501

    percent: Annotated[str, StringConstraints(max_length=16)] | None = None
    """Share of the training bucket in all time except the suspended one, as text: 97.3%."""
    queued_milliseconds: Milliseconds = 0
    """Milliseconds until all pods of a first attempt had a Kubernetes node."""
    starting_milliseconds: Milliseconds = 0
    """Milliseconds from then until all ranks of a first attempt had joined."""
    restoring_milliseconds: Milliseconds = 0
    """Milliseconds from the joining of all ranks until the first update of an attempt."""
    training_milliseconds: Milliseconds = 0
    """Milliseconds of updates and evaluations, without the other buckets. It is all the time of training if the agents report no times."""  # noqa: E501
    data_wait_milliseconds: Milliseconds = 0
    """Milliseconds in which global rank 0 waited for data."""
    checkpoint_stall_milliseconds: Milliseconds = 0
    """Milliseconds for which checkpoints stopped the training."""
    redone_milliseconds: Milliseconds = 0
    """Milliseconds of updates that an earlier attempt had done already."""
    hang_milliseconds: Milliseconds = 0
    """Milliseconds from the last progress of a hung attempt until its hang was confirmed."""
    recovering_milliseconds: Milliseconds = 0
    """Milliseconds from a fault until all ranks of the next attempt had joined."""
    exiting_milliseconds: Milliseconds = 0
    """Milliseconds from the end of the work of all ranks until their exit, and until the completion of the job."""  # noqa: E501
    suspended_milliseconds: Milliseconds = 0
    """Milliseconds for which the job was suspended."""
    redone_steps: Steps = 0
    """Number of updates that an earlier attempt had done already."""
    reached_step: Steps = 0
    """Highest number of completed updates that an ended attempt has reported."""
    counted: CountedStatus | None = None
    """Part of the current attempt's training that the buckets contain already."""

    def milliseconds(self, bucket: Bucket) -> int:
        """Return the milliseconds of one bucket."""
        found: int = getattr(self, bucket.field)
        return found
