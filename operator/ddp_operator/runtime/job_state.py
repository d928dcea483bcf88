"""What one operator process remembers of a job."""

from dataclasses import dataclass, field
from datetime import datetime

from ddp_operator.runtime.fair_budget import FairShare
from ddp_operator.runtime.pod_views import PodViews
from ddp_operator.runtime.pod_warnings import PodWarnings
from ddp_operator.runtime.repairs import Repairs
from ddp_operator.runtime.sightings import Sightings
from ddp_operator.runtime.token_bucket import TokenBucket


@dataclass(slots=True)
class JobState:
    """Memory of one job. It ends with the job, and a restart of the operator loses it."""

    attempts: FairShare
    """Share of the attempts of all jobs."""
    minor_writes: TokenBucket
    """Budget of status writes that change only what the job's agents report."""
    repairs: Repairs
    sightings: Sightings
    warnings: PodWarnings
    views: PodViews = field(default_factory=PodViews)
    decision_seconds: float = 0.0
    """CPU time of the last decision."""
    written: datetime | None = None
    """Time of the last status write."""
    creating: int | None = None
    """Attempt of which some pods remain to be created in the job's next turn, or None."""
    blocked: str | None = None
    """Error of the last action that failed, or None."""
    warned: str = ""
    """Last sentence that was published about an unreadable status."""
    delayed: int | None = None
    """Attempt about whose delay an Event was published."""
