"""Read one job and the log of its node 0, with the permissions of the user's kubeconfig."""

from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.config import kube_config

from ddp_operator.api.base import KIND
from ddp_operator.api.job import parse_job
from ddp_operator.builders.names import pod_name
from ddp_operator.cluster.base import ClusterError, Manifest, NoClusterError
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.paths import object_path
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_wire.contract import WORKER_CONTAINER

LOG_LINES = 500_000
"""Maximum number of lines that are read from the end of a log."""
_LOG_SECONDS = 120


@dataclass(frozen=True)
class JobAndLog:
    """A job with the log of its node 0, if that pod still exists."""

    job: Manifest
    pod: str
    log: bytes | None
    problem: str
    """Reason why the log is missing, as a phrase."""


async def read_job(name: str, namespace: str | None, context: str | None) -> JobAndLog:
    """Return a job and the log of its node 0.

    Args:
        name: Name of the job.
        namespace: Namespace of the job. None selects that of the kubeconfig's context.
        context: Context of the kubeconfig. None selects the current one.

    Raises:
        ClusterError: The job does not exist, or the API server refuses or does not answer.
    """
    configuration = client.Configuration()
    chosen = await _configure(configuration, context)
    key = (namespace or chosen, name)
    async with client.ApiClient(configuration) as api:
        found = await ApiConnection(api).get(object_path(KIND, *key))
        if found is None:
            raise ClusterError(f"there is no {KIND} {name!r} in the namespace {key[0]!r}")
        job = keep_used_fields(KIND, found)
        parsed = parse_job(job)
        pod = parsed.status.first_pod or pod_name(parsed, 0)
        try:
            log = await _read_log(api, key[0], pod)
        except ClusterError as error:
            return JobAndLog(job, pod, None, str(error))
    return JobAndLog(job, pod, log, "")


async def _configure(configuration: client.Configuration, context: str | None) -> str:
    """Load the kubeconfig or the pod's service account. Return the default namespace."""
    try:
        await config.load_kube_config(context=context, client_configuration=configuration)
        contexts, current = kube_config.list_kube_config_contexts()
    except config.ConfigException as error:
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            raise NoClusterError(f"no cluster is configured: {error}") from error
        return "default"
    entries = [entry for entry in contexts if entry["name"] == context] or [current]
    return str(entries[0]["context"].get("namespace") or "default")


async def _read_log(api: client.ApiClient, namespace: str, pod: str) -> bytes:
    """Return the end of the log of a worker pod.

    Raises:
        ClusterError: The pod is gone, its log cannot be read, or the API server does not answer.
    """
    core = client.CoreV1Api(api)
    try:
        response = await core.read_namespaced_pod_log_without_preload_content(
            pod,
            namespace,
            container=WORKER_CONTAINER,
            tail_lines=LOG_LINES,
            _request_timeout=_LOG_SECONDS,
        )
        text: bytes = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ClusterError(f"the API server did not answer: {error!r}") from error
    if response.status == HTTPStatus.NOT_FOUND:
        raise ClusterError(f"the pod {pod} is gone")
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise ClusterError(f"the log of the pod {pod} cannot be read (HTTP {response.status})")
    return text
