"""Extract the facts of a report from a DDPJob object."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddp_operator.api.job import parse_job
from ddp_operator.api.status import AttemptStatus, ConditionType, DDPJobStatus

_MILLISECONDS = "Milliseconds"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The part of a DDPJob that the report shows."""

    name: str
    namespace: str
    nodes: int
    ranks_per_node: int
    status: DDPJobStatus
    first_pod: str
    """Name of the pod of node 0."""
    goodput: Mapping[str, float]
    """Seconds by goodput bucket, from the job's status. Empty if the status has no ledger."""
    goodput_percent: str
    """Share of training in percent, from the job's status. Empty if the status has no ledger."""

    @property
    def state(self) -> str:
        """Return the STATUS column of `kubectl get ddpjobs`."""
        summary = self.status.condition(ConditionType.SUCCEEDED)
        return summary.reason if summary else "Pending"

    @property
    def message(self) -> str:
        """Return the reason for the state, as a sentence."""
        summary = self.status.condition(ConditionType.SUCCEEDED)
        return summary.message if summary else ""

    @property
    def runs(self) -> bool:
        """Return whether the job is neither completed, nor failed, nor suspended."""
        suspended = self.status.is_true(ConditionType.SUSPENDED)
        return self.status.attempt > 0 and self.status.completion_time is None and not suspended

    @property
    def attempts(self) -> list[AttemptStatus]:
        """Return the attempts in the job's status, which are the last that have ended."""
        return self.status.attempts


def job_facts(manifest: Mapping[str, Any]) -> JobFacts:
    """Return the facts of a DDPJob object.

    Raises:
        InvalidJobError: The object is not a DDPJob of this version.
    """
    job = parse_job(manifest)
    # Another version may have written it, so the report does not need its model.
    goodput = (manifest.get("status") or {}).get("goodput")
    percent = goodput.get("percent") if isinstance(goodput, Mapping) else None
    return JobFacts(
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        nodes=job.nodes,
        ranks_per_node=job.spec.ranks_per_node,
        status=job.status,
        first_pod=job.status.first_pod or f"{job.metadata.name}-0",
        goodput=_goodput(goodput),
        goodput_percent=percent if isinstance(percent, str) else "",
    )


def unix(time: datetime | None) -> float | None:
    """Return a datetime as Unix seconds."""
    return None if time is None else time.timestamp()


def _goodput(value: Any) -> dict[str, float]:
    """Return the seconds of each goodput bucket. Skip fields that are not numbers."""
    if not isinstance(value, Mapping):
        return {}
    return {
        name.removesuffix(_MILLISECONDS): number / 1000
        for name, number in list(value.items())[:32]
        if name.endswith(_MILLISECONDS) and isinstance(number, int) and 0 < number < 2**53
    }
