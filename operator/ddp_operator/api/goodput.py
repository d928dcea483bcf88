"""Define the models of `DDPJob.status.goodput`, the ledger of a job's wall-clock time."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from ddp_operator.api.base import StatusModel

Milliseconds = Annotated[int, Field(ge=0)]
Steps = Annotated[int, Field(ge=0)]


class Bucket(StrEnum):
    """Bucket of the goodput ledger. Each millisecond of a job's wall-clock time is in exactly one bucket."""  # noqa: E501

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
    """Part of the current attempt's training time that the buckets already contain."""

    step: Steps = 0
    """Number of completed updates of the run that the buckets already contain."""
    training_milliseconds: Milliseconds = 0
    """Milliseconds of updates and evaluations that the buckets already contain, without waits for data."""  # noqa: E501
    data_wait_milliseconds: Milliseconds = 0
    """Milliseconds of waits for data that the buckets already contain."""
    checkpoint_stall_milliseconds: Milliseconds = 0
    """Milliseconds of stops for checkpoints that the buckets already contain."""


class GoodputStatus(StatusModel):
    """Ledger of the job's wall-clock time. Its buckets together hold the time from metadata.creationTimestamp until the newest update of the ledger, or until completionTime. The operator updates the ledger when it writes the status."""  # noqa: E501

    percent: Annotated[str, StringConstraints(max_length=16)] | None = None
    """Training time as a share of all time in which the job was not suspended, as text: 97.3%."""
    queued_milliseconds: Milliseconds = 0
    """Milliseconds from the creation or a resumption of the job until all pods of its first attempt had a Kubernetes node."""  # noqa: E501
    starting_milliseconds: Milliseconds = 0
    """Milliseconds from the placement of all pods of a first attempt until all its ranks had joined the process group."""  # noqa: E501
    restoring_milliseconds: Milliseconds = 0
    """Milliseconds from the time at which all ranks had joined the process group until the first update of the attempt."""  # noqa: E501
    training_milliseconds: Milliseconds = 0
    """Milliseconds of updates and evaluations that no other bucket contains. If the agents report no times, all milliseconds after the first update."""  # noqa: E501
    data_wait_milliseconds: Milliseconds = 0
    """Milliseconds in which global rank 0 waited for data."""
    checkpoint_stall_milliseconds: Milliseconds = 0
    """Milliseconds for which checkpoints stopped the training."""
    redone_milliseconds: Milliseconds = 0
    """Milliseconds of updates that an earlier attempt had done already."""
    hang_milliseconds: Milliseconds = 0
    """Milliseconds from the last progress of a hung attempt until its hang was confirmed."""
    recovering_milliseconds: Milliseconds = 0
    """Milliseconds from a fault until all ranks of the next attempt had joined the process group."""  # noqa: E501
    exiting_milliseconds: Milliseconds = 0
    """Milliseconds from the moment at which all ranks had finished their work until they had exited and the job was complete."""  # noqa: E501
    suspended_milliseconds: Milliseconds = 0
    """Milliseconds for which the job was suspended."""
    redone_steps: Steps = 0
    """Number of updates that an earlier attempt had done already."""
    reached_step: Steps = 0
    """Highest number of completed updates that an ended attempt has reported."""
    counted: CountedStatus | None = None
    """Part of the current attempt's training time that the buckets already contain."""

    def milliseconds(self, bucket: Bucket) -> int:
        """Return the milliseconds of one bucket."""
        found: int = getattr(self, bucket.field)
        return found
