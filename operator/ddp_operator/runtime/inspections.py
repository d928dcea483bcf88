"""Pass the questions of users about running ranks on to the agents, see `ddp_wire.inspections`."""

from collections.abc import Callable, Sequence

from ddp_operator.cluster.base import Cluster, Manifest
from ddp_operator.limits import INSPECTIONS
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.runtime.token_bucket import TokenBucket
from ddp_wire.contract import ANNOTATION_INSPECTION
from ddp_wire.inspections import inspection_from_text
from ddp_wire.messages import InspectionRequest


class QuestionForwarder:
    """Questions about one job. A restart of the operator may repeat the last one."""

    def __init__(self, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        """Create the state of one job.

        Args:
            cluster: Access to the agents.
            monotonic: Function that returns the seconds of a monotonic clock.
        """
        self._cluster, self._monotonic = cluster, monotonic
        self._budget = TokenBucket(INSPECTIONS, monotonic())
        self._sent = ""

    def look(self, raw: Manifest, pods: Sequence[PodView]) -> float | None:
        """Send the question in the job's annotation once to the agents of its pods.

        Args:
            raw: The job's manifest.
            pods: Pods of the job, or none if its ranks do not run.

        Returns:
            Seconds for which a question must wait, because the job has asked others shortly before.
            None if no question waits.
        """
        question = (raw["metadata"].get("annotations") or {}).get(ANNOTATION_INSPECTION, "")
        if question == self._sent or inspection_from_text(question) is None or not pods:
            return None
        now = self._monotonic()
        if (wait := self._budget.seconds_until_token(now)) > 0.0:
            return wait
        self._budget.take(now)
        self._sent = question
        request = InspectionRequest(job_uid=raw["metadata"]["uid"], question=question)
        self._cluster.send_inspection(pods, request)
        return None
