"""The jobs of one namespace of a cluster."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeVar

from ddp_operator.api.base import API_VERSION, KIND, PLURAL
from ddp_operator.api.finished import CONFIG_MAP, read_finished
from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.builders.names import init_pod_name, pod_name
from ddp_operator.client.backend import FinishedJob, Json, event_time
from ddp_operator.client.cluster_inspections import Inspector
from ddp_operator.client.errors import NoSuchJobError, RequestError
from ddp_operator.client.follow import JobFollower, LineStream
from ddp_operator.client.log_lines import LogLine, LogParser, Wanted, in_order, wanted_lines
from ddp_operator.client.object_paths import is_name, is_namespace, path_in
from ddp_operator.client.rank_stacks import RankStack, stacks_in
from ddp_operator.cluster.errors import ClusterError, ConflictError
from ddp_operator.cluster.rest.connection import RestConnection
from ddp_operator.cluster.rest.kubeconfig import load_access
from ddp_wire.contract import ANNOTATION_INSPECTION, LABEL_JOB_UID, WORKER_CONTAINER

_Answer = TypeVar("_Answer")
_CORE, _JOBS = "/api/v1", f"/apis/{API_VERSION}"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Media type of lists without the specs of pods, which contain secrets."""

_NO_LOG = {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}
"""Answers of the API server if a container has not started yet, or its pod is gone."""


class ClusterJobs:
    """The jobs of one namespace, with the rights of the user's kubeconfig."""

    def __init__(self, namespace: str | None = None, context: str | None = None) -> None:
        """Connect to the cluster of a context of the kubeconfig. No request is sent yet.

        Args:
            namespace: Namespace of the jobs. None selects that of the context.
            context: Context of the kubeconfig. None selects the current one.

        Raises:
            NoClusterError: No cluster is configured.
            ClusterError: The kubeconfig cannot be used.
            RequestError: No namespace can have this name.
        """
        access = load_access(context)
        self._api = RestConnection(access)
        self.namespace = namespace or access.namespace
        if not is_namespace(self.namespace):
            raise RequestError(f"the namespace must be a DNS label, got {self.namespace!r}")
        self._options = (f" -n {namespace}" if namespace else "") + (
            f" --context {context}" if context else ""
        )
        self._notes: list[str] = []
        self._lost_lines = False

    @property
    def place(self) -> str:
        """Return the namespace in words."""
        return f"namespace {self.namespace}"

    @property
    def options(self) -> str:
        """Return the options of `ddpjob` that select the namespace."""
        return self._options

    def volumes(self, name: str) -> None:
        """Return None, because the volumes of a cluster are not on this machine."""
        del name

    def notes(self) -> list[str]:
        """Return what the last call could not read."""
        return self._notes

    @property
    def lost_lines(self) -> bool:
        """Return whether the last call could not read lines of a log that exists."""
        return self._lost_lines

    def read(self, name: str) -> Json:
        """Return a DDPJob object."""
        path = self._path(name)
        found = self._asked(lambda: self._api.get(path))
        if found is None:
            raise self._no_such_job(name)
        if found.get("kind") != KIND:
            sentence = f"{self._api.access.server} must answer with a {KIND}"
            raise ClusterError(f"{sentence}, got {found.get('kind')!r}")
        return found

    def read_all(self, *, everywhere: bool = False) -> list[Json]:
        """Return all DDPJob objects of the namespace, or of all namespaces."""
        path = f"{_JOBS}/{PLURAL}" if everywhere else self._path()
        found = self._asked(lambda: self._items(path))
        # The API server leaves these fields out of the items of a list.
        return [{"apiVersion": API_VERSION, "kind": KIND, **item} for item in found]

    def finished(self, *, everywhere: bool = False) -> list[FinishedJob]:
        """Return the finished jobs in the list of the namespace, or in the lists of all of them."""
        self._forget_notes()
        path = f"{_CORE}/configmaps" if everywhere else self._core_path("configmaps")
        query = {"fieldSelector": f"metadata.name={CONFIG_MAP}"}
        try:
            found = self._items(path, query)
        except ClusterError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            self._notes.append(f"deleted jobs are not shown: {error}")
            return []
        jobs = [
            FinishedJob(str(one["metadata"]["namespace"]), summary)
            for one in found
            for summary in read_finished(one)
        ]
        return sorted(jobs, key=lambda one: one.summary.ended, reverse=True)

    def create(self, manifest: Json, config_maps: Sequence[Json] = ()) -> Json:
        """Create a job, and then the ConfigMaps that it mounts and owns. Return the job.

        The pods wait for the ConfigMaps. If one cannot be created, the job is deleted again.
        """
        name = manifest["metadata"]["name"]
        named = manifest["metadata"].get("namespace", self.namespace)
        if named != self.namespace:
            sentence = f"{name} names the namespace {named!r}, and ddpjob uses {self.namespace!r}"
            raise RequestError(f"{sentence}: give -n {named}, or remove it from the job")
        metadata = {**manifest["metadata"], "namespace": self.namespace}
        maps = self._core_path("configmaps")
        exists = f"a {KIND} {name!r} exists already in the namespace {self.namespace!r}"
        for one in config_maps:  # A refusal must not leave a job behind.
            try:
                self._asked(functools.partial(self._dry_run, maps, one))
            except ConflictError as error:
                if self._has(name):  # Its ConfigMap exists, too, so only the job is named.
                    raise RequestError(f"{exists}; delete it, or choose another name") from error
                raise
        try:
            job = self._asked(
                lambda: self._api.call(
                    "POST", self._path(), body={**manifest, "metadata": metadata}
                )
            )
        except ConflictError as error:
            raise RequestError(f"{exists}; delete it, or choose another name") from error
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": _uid(job)}
        for one in config_maps:
            body = {**one, "metadata": {**one["metadata"], "ownerReferences": [owner]}}
            try:
                self._asked(functools.partial(self._api.call, "POST", maps, body=body))
            except ClusterError:
                self.delete(name)
                raise
        return job

    def _has(self, name: str) -> bool:
        """Return whether a job exists."""
        try:
            self.read(name)
        except NoSuchJobError:
            return False
        return True

    def _dry_run(self, path: str, body: Json) -> Json:
        return self._api.call("POST", path, body=body, query={"dryRun": "All"})

    def set_spec(self, name: str, fields: Mapping[str, Any]) -> Json:
        """Change fields of the spec of a job. Return the job."""
        return self._change("PATCH", self._path(name), name, {"spec": dict(fields)})

    def scale(self, name: str, nodes: int) -> None:
        """Change the number of nodes of a job through its scale subresource."""
        self._change("PATCH", f"{self._path(name)}/scale", name, {"spec": {"replicas": nodes}})

    def delete(self, name: str) -> None:
        """Delete a job. Kubernetes deletes its pods."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        self._change("DELETE", self._path(name), name, options)

    def _change(self, method: str, path: str, name: str, body: Json) -> Json:
        try:
            return self._asked(lambda: self._api.call(method, path, body=body))
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise self._no_such_job(name) from error
            if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
                raise RequestError(str(error)) from error
            raise

    def lines(self, name: str, wanted: Wanted, *, follow: bool) -> Iterator[LogLine]:
        """Yield the output of a job in order. With `follow`, go on until the job is over."""
        self._forget_notes()
        job = parse_job(self.read(name))
        if not follow:
            return wanted_lines(self._past_lines(job, wanted.since), wanted)
        uid = job.metadata.uid
        follower = JobFollower(
            self._open_log, lambda: self._pods(job), lambda: self._is_over(name, uid), wanted.since
        )
        return wanted_lines(self._followed(follower), wanted)

    def _followed(self, follower: JobFollower) -> Iterator[LogLine]:
        try:
            yield from follower
        finally:
            for pod, error in sorted(follower.problems.items()):
                self._note_log(pod, error)

    def _past_lines(self, job: DDPJob, since: datetime | None) -> Iterator[LogLine]:
        lines: list[LogLine] = []
        for pod in self._pods(job):
            parser = LogParser(pod)
            try:
                # A log that breaks keeps its first lines.
                lines.extend(map(parser.parse, self._open_log(pod, since, follow=False)))
            except ClusterError as error:
                self._note_log(pod, error)
        yield from in_order(lines)

    def _forget_notes(self) -> None:
        """Forget what an earlier call could not read."""
        self._notes, self._lost_lines = [], False

    def _note_log(self, pod: str, error: ClusterError) -> None:
        self._notes.append(f"{pod}: {error}")
        if error.status not in _NO_LOG:
            self._lost_lines = True

    def _is_over(self, name: str, uid: str) -> bool:
        try:
            job = self.read(name)
        except NoSuchJobError:
            return True
        except ClusterError:
            return False  # The API server may be back soon.
        return _uid(job) != uid or bool((job.get("status") or {}).get("completionTime"))

    def _pods(self, job: DDPJob) -> list[str]:
        """Return the names of the job's pods. A viewer may not list them."""
        query = {"labelSelector": f"{LABEL_JOB_UID}={job.metadata.uid}"}
        try:
            found = self._items(self._core_path("pods"), query, accept=_METADATA_ONLY)
        except ClusterError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return _expected_pods(job)
        names = {str(item["metadata"]["name"]) for item in found}
        return sorted(names | set(_expected_pods(job))) if names else _expected_pods(job)

    def stacks(self, job: DDPJob) -> list[RankStack]:
        """Return the stacks of the ranks that answered, in the order of the ranks."""
        answers = self._inspector(job).stacks(_running_ranks(job), job.spec.ranks_per_node)
        return stacks_in(answers)

    def request_profile(self, job: DDPJob, steps: int) -> str:
        """Request a trace of updates of rank 0. Return where it will be."""
        return self._inspector(job).profile(steps)

    def _inspector(self, job: DDPJob) -> Inspector:
        name = job.metadata.name

        def annotate(value: str | None) -> Json:
            metadata = {"annotations": {ANNOTATION_INSPECTION: value}}
            return self._change("PATCH", self._path(name), name, {"metadata": metadata})

        def open_log(pod: str, seconds: int) -> LineStream:
            query = {"container": WORKER_CONTAINER, "sinceSeconds": str(seconds)}
            return self._api.stream(self._log_path(pod), query)

        return Inspector(annotate, open_log, self._pods(job))

    def _open_log(self, pod: str, since: datetime | None, *, follow: bool = True) -> LineStream:
        query = {"container": WORKER_CONTAINER, "timestamps": "true"}
        if since is not None:
            query["sinceTime"] = since.isoformat().replace("+00:00", "Z")
        if follow:
            query["follow"] = "true"
        try:
            return self._api.stream(self._log_path(pod), query)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise ClusterError("the pod is gone", status=error.status) from error
            raise

    def _log_path(self, pod: str) -> str:
        if not is_name(pod):  # Other users may have written the status with the name.
            raise ClusterError("no pod can have this name", status=HTTPStatus.BAD_REQUEST)
        return self._core_path("pods", pod, "log")

    def history(self, name: str) -> Iterator[bytes]:
        """Yield the lines of the log of node 0, which has the run's events."""
        self._forget_notes()
        job = parse_job(self.read(name))
        pod = job.status.first_pod or pod_name(job, 0)
        query = {"container": WORKER_CONTAINER}
        try:
            yield from self._api.stream(self._log_path(pod), query)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                self._notes.append(f"the pod {pod} is gone")
            else:
                self._note_log(pod, error)

    def events(self, name: str) -> list[Json]:
        """Return the Events about a job, oldest first."""
        uid = _uid(self.read(name))
        query = {"fieldSelector": f"involvedObject.name={name},involvedObject.kind={KIND}"}
        found = self._asked(lambda: self._items(self._core_path("events"), query))
        mine = [one for one in found if one["involvedObject"].get("uid") == uid]
        # The API server leaves the kind out of the items of a list.
        return [{"kind": "Event", **one} for one in sorted(mine, key=event_time)]

    def _path(self, name: str | None = None) -> str:
        """Return the path of a job, or without a name that of all jobs of the namespace.

        Raises:
            NoSuchJobError: No job can have this name.
        """
        if name is None:
            return path_in(_JOBS, self.namespace, PLURAL)
        if not is_name(name):  # An empty name would be the path of all jobs.
            raise self._no_such_job(name)
        return path_in(_JOBS, self.namespace, PLURAL, name)

    def _core_path(self, *parts: str) -> str:
        return path_in(_CORE, self.namespace, *parts)

    def _no_such_job(self, name: str) -> NoSuchJobError:
        return NoSuchJobError(f"there is no {KIND} {name!r} in the namespace {self.namespace!r}")

    def _items(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
    ) -> list[Json]:
        """Return the items of a list."""
        found = self._api.call("GET", path, query=query, accept=accept)
        items = found.get("items", ())
        if items is None:
            return []
        if not isinstance(items, list):
            raise ClusterError(f"{self._api.access.server} must answer with a list for {path}")
        return items

    def _asked(self, request: Callable[[], _Answer]) -> _Answer:
        """Send a request. Explain a refusal that every user may meet."""
        try:
            return request()
        except ClusterError as error:
            if error.status == HTTPStatus.FORBIDDEN and error.reason == "Forbidden":
                hint = "the chart's roles ddpjob-viewer and ddpjob-editor allow it"
                raise ClusterError(f"{error}; {hint}", status=error.status) from error
            if error.status == HTTPStatus.NOT_FOUND and not error.reason:
                sentence = f"the cluster of the context {self._api.access.context!r} has no {KIND}s"
                raise ClusterError(f"{sentence}: install the chart", status=error.status) from error
            raise


def _expected_pods(job: DDPJob) -> list[str]:
    """Return the names that the pods of a job have, if no finalizer has held a name."""
    names = [pod_name(job, index) for index in range(job.pods)]
    first, init = job.status.first_pod, job.status.init
    if first is not None and first not in names:
        names.insert(0, first)
    if init is not None and init.step is not None and init.tries:
        names.insert(0, init_pod_name(job, init.step, init.tries))
    return names


def _running_ranks(job: DDPJob) -> int:
    """Return the number of ranks of the current attempt."""
    return len(job.members) * job.spec.ranks_per_node


def _uid(job: Json) -> str:
    return str(job["metadata"].get("uid") or "")
