"""What the client needs from the place where jobs run: a cluster, or this machine."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ddp_operator.api.job import DDPJob
from ddp_operator.api.summary import JobSummary
from ddp_operator.client.log_lines import LogLine, Wanted
from ddp_operator.client.rank_stacks import RankStack

Json = dict[str, Any]


class FinishedJob(NamedTuple):
    """A job in a list of finished jobs."""

    namespace: str
    summary: JobSummary


class Backend(Protocol):
    """Access to the jobs of one namespace of a cluster, or of one folder of this machine."""

    @property
    def place(self) -> str:
        """Return where the jobs are, in words."""

    @property
    def options(self) -> str:
        """Return the options of `ddpjob` that select this place, with a leading space."""

    def read(self, name: str) -> Json:
        """Return a DDPJob object.

        Raises:
            NoSuchJobError: There is no such job.
            ClusterError: The API server refused the request, or did not answer.
        """

    def read_all(self, *, everywhere: bool = False) -> list[Json]:
        """Return all DDPJob objects of this place, or of all namespaces."""

    def finished(self, *, everywhere: bool = False) -> list[FinishedJob]:
        """Return the finished jobs of this place that its lists still have, newest first.

        They include deleted jobs. Users of a namespace may edit its list.
        """

    def create(self, manifest: Json, config_maps: Sequence[Json] = ()) -> Json:
        """Create a job with the ConfigMaps that it mounts. Return the job.

        Raises:
            RequestError: The job exists already, or cannot run here.
            ClusterError: The API server refused the request, or did not answer.
        """

    def set_spec(self, name: str, fields: Mapping[str, Any]) -> Json:
        """Change fields of the spec of a job. Return the job.

        Raises:
            RequestError: The job cannot be changed in this way here.
        """

    def scale(self, name: str, nodes: int) -> None:
        """Change the number of nodes of a job."""

    def delete(self, name: str) -> None:
        """Delete a job with its pods."""

    def lines(self, name: str, wanted: Wanted, *, follow: bool) -> Iterator[LogLine]:
        """Yield the output of a job in order. With `follow`, go on until the job is over."""

    def history(self, name: str) -> Iterator[bytes]:
        """Yield the lines of the run's events."""

    def events(self, name: str) -> list[Json]:
        """Return the Events about a job, oldest first."""

    def stacks(self, job: DDPJob) -> list[RankStack]:
        """Return the stacks of the ranks of a running job that answered, in their order."""

    def request_profile(self, job: DDPJob, steps: int) -> str:
        """Request a trace of updates of rank 0. Return a sentence that says where it will be.

        Raises:
            RequestError: The job cannot write traces.
        """

    def volumes(self, name: str) -> Path | None:
        """Return the folder that has the claims of a run as folders, or None on a cluster."""

    def notes(self) -> list[str]:
        """Return what the last call could not read, as sentences."""

    @property
    def lost_lines(self) -> bool:
        """Return whether the last call could not read lines of a log that exists."""


def event_time(event: Json) -> str:
    """Return the time of the newest occurrence of an Event, as text in UTC."""
    series = event.get("series") or {}
    found = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, found), event["metadata"].get("creationTimestamp") or ""))
