"""Jobs as objects with verbs, for programs and notebooks."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.client.backend import Backend, Json
from ddp_operator.client.copied_logs import copied_lines
from ddp_operator.client.errors import RequestError, WaitTimeoutError
from ddp_operator.client.log_lines import LogLine, Wanted, wanted_lines, with_copies
from ddp_operator.client.metrics import metric_rows
from ddp_operator.client.rank_stacks import RankStack
from ddp_operator.report.rows import ENDS, message_of, state_of
from ddp_operator.report.why import Why, explain
from ddp_wire.inspections import MOST_PROFILED_STEPS

POLL_SECONDS = 1.0
"""Seconds between two reads of a job by `wait` and `watch`."""


@dataclass(frozen=True)
class Job:
    """One job. Each call reads its present state."""

    name: str
    backend: Backend

    def read(self) -> DDPJob:
        """Return the job with its spec and status as typed models.

        Raises:
            NoSuchJobError: The job does not exist.
            ClusterError: The API server refused the request, or did not answer.
        """
        return parse_job(self.manifest())

    def manifest(self) -> Json:
        """Return the DDPJob object as JSON."""
        return self.backend.read(self.name)

    @property
    def status(self) -> DDPJobStatus:
        """Return the status of the job."""
        return self.read().status

    @property
    def state(self) -> str:
        """Return the STATUS of the job, for example Running, Completed or Failed."""
        return state_of(self.read())

    def wait(
        self,
        *states: str,
        timeout: float | None = None,
        on_change: Callable[[DDPJob], None] = lambda _: None,
    ) -> DDPJob:
        """Wait until the job has ended, or has reached one of the given states. Return the job.

        A job that ends in another state than the awaited ones is returned, too.

        Args:
            states: STATUS values to wait for. The default is the end of the job.
            timeout: Maximum seconds to wait.
            on_change: Function that is called with each new state of the job.

        Raises:
            WaitTimeoutError: The time is over.
        """
        end = None if timeout is None else time.monotonic() + timeout
        last: tuple[str, ...] = ()
        while True:
            job = self.read()
            state = state_of(job)
            shown = (state, job.status.ready or "", _progress_of(job))
            if shown != last:
                on_change(job)
                last = shown
            if state in ENDS or state in states:
                return job
            if end is not None and time.monotonic() >= end:
                awaited = " or ".join(states) or "its end"
                raise WaitTimeoutError(
                    f"{self.name} did not reach {awaited} within {timeout:g} s; it is"
                    f" {state}: {message_of(job)}"
                )
            time.sleep(POLL_SECONDS)

    def logs(
        self,
        *,
        follow: bool = False,
        ranks: Sequence[int] = (),
        attempt: int | None = None,
        since: timedelta | datetime | None = None,
        run_directory: Path | None = None,
    ) -> Iterator[LogLine]:
        """Yield the output of all ranks and attempts in order.

        Args:
            follow: Whether to go on until the job is over.
            ranks: Ranks to show. The default is all of them, and the agents.
            attempt: Attempt to show. The default is all of them.
            since: Age of the oldest line, or its time. A time without a time zone is local.
            run_directory: The run's directory, if its volume is mounted here, or that of
                `copied_logs`. Its copies have the lines of pods that are gone.

        Raises:
            NoSuchJobError: The job does not exist.
            RequestError: The age leads to a time before the first year, or copies are followed.
            ClusterError: The API server refused the request, or did not answer.
        """
        wanted = Wanted(frozenset(ranks), attempt, _begin(since))
        if run_directory is None:
            return self.backend.lines(self.name, wanted, follow=follow)
        if follow:
            raise RequestError("copies of logs cannot be followed: leave out --run-dir or --follow")
        job = self.read()
        lines = list(self.backend.lines(self.name, Wanted(), follow=False))
        shown = {(line.pod, line.attempt) for line in lines}
        copies = copied_lines(run_directory, job.spec.ranks_per_node, shown, self.name)
        return wanted_lines(with_copies(lines, copies), wanted)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the reports of the run as rows for a data frame, oldest first."""
        return metric_rows(self.backend.history(self.name))

    def events(self) -> list[Json]:
        """Return the Events about the job, oldest first."""
        return self.backend.events(self.name)

    def why(self) -> Why:
        """Return why the job is in its state, and what to do."""
        return explain(self.read(), options=self.backend.options)

    def stacks(self) -> list[RankStack]:
        """Return where the threads of all ranks are now. The ranks go on.

        Ranks that did not answer have empty stacks, or are missing.

        Raises:
            RequestError: No rank runs.
            ClusterError: The API server refused the request, or did not answer.
        """
        return self.backend.stacks(self._running())

    def profile(self, steps: int = 5) -> str:
        """Request a trace of the next updates of rank 0. Return where it will be, as a sentence.

        Args:
            steps: Number of updates, from 1 to 100.

        Raises:
            RequestError: No rank runs, or the job cannot write traces.
            ClusterError: The API server refused the request, or did not answer.
        """
        if not 1 <= steps <= MOST_PROFILED_STEPS:
            raise RequestError(f"steps: must be from 1 to {MOST_PROFILED_STEPS}, not {steps}")
        return self.backend.request_profile(self._running(), steps)

    def _running(self) -> DDPJob:
        """Return the job, which may have ranks."""
        job = self.read()
        if (state := state_of(job)) in {*ENDS, "Suspended"}:
            raise RequestError(f"{self.name} is {state}, so it has no ranks now")
        return job

    def suspend(self) -> None:
        """Let the ranks save a checkpoint, and free the nodes of the job."""
        self.backend.set_spec(self.name, {"suspend": True})

    def resume(self) -> None:
        """Start a suspended job again from its newest checkpoint."""
        self.backend.set_spec(self.name, {"suspend": False})

    def scale(self, nodes: int) -> None:
        """Change the number of nodes. The job goes on from its newest checkpoint."""
        self.backend.scale(self.name, nodes)

    def delete(self) -> None:
        """Delete the job. Checkpoints on its volume stay."""
        self.backend.delete(self.name)


def _begin(since: timedelta | datetime | None) -> datetime | None:
    """Return the time of the oldest line that a user wants to see, in UTC."""
    if since is None:
        return None
    try:
        if isinstance(since, timedelta):
            return datetime.now(UTC) - since
        return since.astimezone(UTC)  # Without a time zone it is a time of this machine.
    except OverflowError as error:
        raise RequestError("since: must be an age of less than 2,000 years") from error


def _progress_of(job: DDPJob) -> str:
    return job.status.progress.summary if job.status.progress is not None else ""


def is_suspended(job: DDPJob) -> bool:
    """Return whether a job is suspended and has no pods."""
    return job.status.is_true(ConditionType.SUSPENDED)
