"""Define the short summary of a job that notifications and lists of finished jobs contain."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AwareDatetime, Field, StringConstraints

from ddp_operator.api.base import StatusModel
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Cause, ConditionType
from ddp_wire.plain_text import PlainText

_OLDEST = datetime.min.replace(tzinfo=UTC)
MESSAGE_CHARACTERS = 512
"""Maximum length of a message in a summary, in characters."""

Word = Annotated[PlainText, StringConstraints(max_length=256)]
Sentence = Annotated[PlainText, StringConstraints(max_length=MESSAGE_CHARACTERS)]
Count = Annotated[int, Field(ge=0)]


class JobSummary(StatusModel):
    """Summary of a job. It has no traceback, because that may quote data."""

    name: Word
    """Name of the job."""
    uid: Word
    """Unique id of the job."""
    state: Word
    """Value of the column STATUS, for example Completed or Failed."""
    message: Sentence = ""
    """Reason for the state, as a sentence of at most 512 characters."""
    cause: Cause | None = None
    """Class of the newest failure: Application, Infrastructure or Free. Absent without a failure."""  # noqa: E501
    reason: Word | None = None
    """Kind of the newest failure, as `status.lastFailure.reason`. Absent without a failure."""
    attempts: Count = 0
    """Number of attempts."""
    creation_time: AwareDatetime | None = None
    """Time at which the job was created."""
    start_time: AwareDatetime | None = None
    """Time at which the operator started the job or last resumed it."""
    completion_time: AwareDatetime | None = None
    """Time at which the job completed or failed."""
    goodput: Word | None = None
    """Training time as a share of all time in which the job was not suspended: 97.3%."""
    step: Count | None = None
    """Number of completed updates."""
    total_steps: Count | None = None
    """Number of updates of the whole run."""
    nodes: Count = 0
    """Number of nodes of the job."""
    ranks: Count = 0
    """Number of ranks on all nodes together."""

    @property
    def ended(self) -> datetime:
        """Return when the job ended. A job without this time counts as the oldest one."""
        return self.completion_time or _OLDEST


def summarize(job: DDPJob) -> JobSummary:
    """Return the summary of a job."""
    status = job.status
    shown = status.condition(ConditionType.SUCCEEDED)
    failure, progress = status.last_failure, status.progress
    return JobSummary(
        name=job.metadata.name,
        uid=job.metadata.uid,
        state=shown.reason if shown is not None else "Pending",
        message=shortened(shown.message) if shown is not None else "",
        cause=failure.cause if failure is not None else None,
        reason=shortened(failure.reason, 256) if failure is not None else None,
        attempts=status.attempt,
        creation_time=job.metadata.creation_timestamp,
        start_time=status.start_time,
        completion_time=status.completion_time,
        goodput=status.goodput.percent if status.goodput is not None else None,
        step=max(0, progress.step) if progress is not None else None,
        total_steps=max(0, progress.total_steps or 0) or None if progress is not None else None,
        nodes=job.nodes,
        ranks=job.nodes * job.spec.ranks_per_node,
    )


def shortened(text: str, characters: int = MESSAGE_CHARACTERS) -> str:
    """Return a text cut to a number of characters, with an ellipsis if something is missing."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"
