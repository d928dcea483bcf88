"""The entry to jobs of a cluster and of this machine, with the same verbs for both."""

import shlex
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ddp_operator.client.backend import Backend, FinishedJob, Json
from ddp_operator.client.cluster_jobs import ClusterJobs
from ddp_operator.client.code import read_code
from ddp_operator.client.jobs import Job
from ddp_operator.client.local_jobs import LocalJobs
from ddp_operator.client.manifest import JobFile, read_job_file


class Client:
    """Access to the jobs of one namespace of a cluster, or of one folder of this machine."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def list(self, *, everywhere: bool = False) -> list[Json]:
        """Return all DDPJob objects of this place, or of all namespaces."""
        return self.backend.read_all(everywhere=everywhere)

    def finished(self, *, everywhere: bool = False) -> Sequence[FinishedJob]:
        """Return the finished jobs that the lists of this place have, newest first.

        They include deleted jobs. A list has at most 100 jobs, and users of its namespace may
        edit it.
        """
        return self.backend.finished(everywhere=everywhere)

    def get(self, name: str) -> Job:
        """Return a job.

        Raises:
            NoSuchJobError: There is no such job.
        """
        job = Job(name, self.backend)
        job.manifest()
        return job

    def submit(
        self,
        job: str | Path | Mapping[str, Any],
        *,
        settings: Sequence[str] = (),
        code: str | Path | None = None,
    ) -> Job:
        """Create a job, and return it.

        Args:
            job: Path of a manifest, or a DDPJob object.
            settings: Fields of the spec to set, for example `config.epochs=5`.
            code: Folder whose files the job gets at `/code`.

        Raises:
            InvalidJobError: The manifest breaks a rule, or a setting of the loop is wrong.
            RequestError: The job exists already, or the folder cannot be shipped.
            ClusterError: The API server refused the request, or did not answer.
        """
        # The settings must not change the object of the caller.
        given = JobFile("the job", [deepcopy(dict(job))]) if isinstance(job, Mapping) else None
        return self.submit_file(given or read_job_file(Path(str(job))), settings, code)

    def submit_file(
        self, file: JobFile, settings: Sequence[str] = (), code: str | Path | None = None
    ) -> Job:
        """Create the job of a file that was read already, and return it."""
        named = file.names_namespace()
        manifest = file.checked(settings)
        if not named:
            del manifest["metadata"]["namespace"]
        maps = file.config_map_objects()
        if code is not None:
            read = read_code(Path(code))
            manifest = read.mounted(manifest)
            maps = [*maps, read.config_map(manifest["metadata"]["name"])]
        created = self.backend.create(manifest, maps)
        return Job(created["metadata"]["name"], self.backend)


def local(folder: str | Path = "ddp-runs") -> Client:
    """Return the client of the runs in a folder of this machine.

    Args:
        folder: Folder that `--dir` of `ddpjob run` names.
    """
    given = str(folder) != "ddp-runs"
    options = f" --dir {shlex.quote(str(folder))}" if given else " --local"
    return Client(LocalJobs(Path(folder), options=options))


def connect(namespace: str | None = None, context: str | None = None) -> Client:
    """Return the client of a namespace of a cluster.

    Args:
        namespace: Namespace of the jobs. None selects that of the context.
        context: Context of the kubeconfig. None selects the current one.
    """
    return Client(ClusterJobs(namespace, context))
