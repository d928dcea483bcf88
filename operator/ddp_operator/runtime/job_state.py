"""State that one operator process keeps about a job in memory."""

from dataclasses import dataclass, field
from datetime import datetime

from ddp_operator.reconcile.world import RefusedPatch
from ddp_operator.runtime.claim_events import ClaimEvents
from ddp_operator.runtime.fair_budget import FairShare
from ddp_operator.runtime.inspections import QuestionForwarder
from ddp_operator.runtime.pod_views import PodViews
from ddp_operator.runtime.pod_warnings import PodWarnings
from ddp_operator.runtime.queue_messages import QueueMessages
from ddp_operator.runtime.repairs import Repairs
from ddp_operator.runtime.sightings import Sightings
from ddp_operator.runtime.token_bucket import TokenBucket


@dataclass(slots=True)
class JobState:
    """State of one job in memory. A restart of the operator loses it."""

    uid: str
    """The job's uid. Another job may have the same name later."""
    attempts: FairShare
    """The job's share of the budget for attempts."""
    minor_writes: TokenBucket
    """Budget of status writes that only follow the job's agents."""
    repairs: Repairs
    sightings: Sightings
    warnings: PodWarnings
    claim_events: ClaimEvents
    queue: QueueMessages
    inspections: QuestionForwarder
    views: PodViews = field(default_factory=PodViews)
    decision_seconds: float = 0.0
    """CPU seconds of the last decision about the job."""
    written: datetime | None = None
    """Time of the last status write."""
    creating: int | None = None
    """Attempt whose remaining pods will be created in the job's next turn, or None."""
    blocked: str | None = None
    """Error of the newest failed action, or None."""
    refused_claim: RefusedPatch | None = None
    """Newest refused change of the claim that the operator created, or None."""
    deleted_workloads: set[str] = field(default_factory=set)
    """Workloads of Kueue that this process has deleted, so that it deletes each only once."""
    recorded: bool = False
    """Whether the list of finished jobs has the job."""
    warned: str = ""
    """Last message that was published about an unreadable status."""
    delayed: int | None = None
    """Attempt whose delay was already reported by an Event."""
