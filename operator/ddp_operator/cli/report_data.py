"""Read the data of a report: from a run's directory, a local run, or a cluster."""

import time
from collections.abc import Iterable
from pathlib import Path

from ddp_operator.client.cluster_jobs import ClusterJobs
from ddp_operator.client.earlier_run import KILLED, stopped
from ddp_operator.client.run_events import history_files, read_lines
from ddp_operator.client.run_folder import JOB_FILE, is_running, load_job
from ddp_operator.report.history import History, read_history
from ddp_operator.report.job import JobFacts, job_facts
from ddp_operator.report.page import Report
from ddp_wire.contract import HISTORY_FILE

_RUN_FILES = (HISTORY_FILE, "FENCE.json", "config.json")
"""Files that identify a directory as a run's directory."""
_NO_STATUS = (
    "Causes of restarts: only the job's status has them. `ddpjob report JOB --run-dir DIR` reads"
    " both."
)


class NoRunError(Exception):
    """Error for a directory that contains no run. The message is one sentence for the user."""


def read_directory(directory: Path) -> Report:
    """Return the data of a run's directory, or of the folder of a local run.

    Raises:
        NoRunError: The directory does not exist or contains no run.
    """
    if not directory.is_dir():
        raise NoRunError(f"{directory}: no such directory")
    source, now = f"the directory {directory}", time.time()
    if any((directory / name).exists() for name in _RUN_FILES):
        history = read_run(directory)
        return Report(directory.resolve().name, source, None, history, [_NO_STATUS], now)
    if not (directory / JOB_FILE).exists() and not (directory / "logs").is_dir():
        raise NoRunError(
            f"{directory}: must be the directory of a run (with {HISTORY_FILE}) or the folder of a"
            f" local run (with {JOB_FILE})"
        )
    missing: list[str] = []
    job = _local_job(directory, missing)
    name = job.name if job is not None else directory.resolve().name
    history = _read_files(history_files(directory))
    signs = [attempt.end for attempt in history.attempts]
    if (directory / JOB_FILE).exists():
        signs.append((directory / JOB_FILE).stat().st_mtime)
    return Report(name, source, job, history, missing, max(signs, default=now))


def read_cluster(
    name: str, namespace: str | None, context: str | None, run_directory: Path | None
) -> Report:
    """Return the data of a job on a cluster.

    Args:
        name: Name of the job.
        namespace: Namespace of the job. None selects that of the context.
        context: Context of the kubeconfig. None selects the current one.
        run_directory: The run's directory, if the volume is mounted here.

    Raises:
        ClusterError: The job cannot be read.
        InvalidJobError: The job is of another version.
        NoRunError: The run's directory does not exist.
    """
    jobs = ClusterJobs(namespace, context)
    manifest = jobs.read(name)
    job = job_facts(manifest)
    missing: list[str] = []
    if run_directory is not None:
        if not run_directory.is_dir():
            raise NoRunError(f"{run_directory}: no such directory")
        history, source = read_run(run_directory), f"the job's status and {run_directory}"
    else:
        history, source = _history_of_log(jobs, job, missing)
    return Report(name, source, job, history, missing, time.time())


def _history_of_log(jobs: ClusterJobs, job: JobFacts, missing: list[str]) -> tuple[History, str]:
    """Return the events in the log of node 0, and the source of the report."""
    pod = job.first_pod
    history = read_history(jobs.history(job.name))
    if notes := jobs.notes():
        some = "Some events" if history.attempts else "Events"
        missing.append(
            f"{some}, and so the charts: {notes[0]}. --run-dir reads them from the volume."
        )
        if not history.attempts:
            return history, "the job's status"
    if history.attempts and job.status.attempt > 1 and 1 not in history.newest:
        missing.append(
            f"Events before attempt {history.attempts[0].number}: the log of the pod {pod} starts"
            " there. --run-dir reads all events from the volume."
        )
    return history, f"the job's status and the log of the pod {pod}"


def read_run(directory: Path) -> History:
    """Return the history in a run's directory, or else the events in its copied logs."""
    if (directory / HISTORY_FILE).exists():
        return _read_files([directory / HISTORY_FILE])
    copies = directory.glob("logs/attempt-*/node-0/*/attempt_0/0/stdout.log*")
    return _read_files(sorted(copies, key=_attempt_of_copy))


def _attempt_of_copy(path: Path) -> tuple[int, bool]:
    """Return the attempt number of a copied log, and whether the copy is the log's newer half."""
    number = path.parents[3].parent.name.removeprefix("attempt-")
    return int(number) if number.isdigit() else 0, path.suffix != ".old"


def _local_job(directory: Path, missing: list[str]) -> JobFacts | None:
    """Return the job of a local run. If its process was killed, treat the job's pods as gone."""
    if not (directory / JOB_FILE).exists():
        missing.append(f"Status and causes of restarts: there is no {JOB_FILE}.")
        return None
    earlier = load_job(directory)
    job = earlier.job if earlier is not None else None
    if earlier is None or job is None:
        missing.append(f"Status and causes of restarts: {JOB_FILE} is damaged.")
        return None
    facts = job_facts(earlier.manifest)
    if not facts.runs or is_running(directory):
        return facts
    status = stopped(earlier.manifest, earlier.written, KILLED)
    shown = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return job_facts({**earlier.manifest, "status": shown})


def _read_files(paths: Iterable[Path]) -> History:
    return read_history(read_lines(paths))
