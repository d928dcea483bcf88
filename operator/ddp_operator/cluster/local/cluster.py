"""Cluster access without Kubernetes: the pods are processes on loopback addresses."""

import asyncio
import itertools
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from ddp_operator.cluster.agents import Agents
from ddp_operator.cluster.base import (
    AgentAnswer,
    ClusterError,
    ConflictError,
    Key,
    Listing,
    Manifest,
)
from ddp_operator.cluster.local import share
from ddp_operator.cluster.local.lost_nodes import POLL_SECONDS, LostNodes, waiting_status
from ddp_operator.cluster.local.network import LocalNetwork
from ddp_operator.cluster.local.paths import inside
from ddp_operator.cluster.local.pod import LocalPod, container_environment
from ddp_operator.cluster.local.shape import CHECKPOINT_VOLUME, check_shape
from ddp_operator.cluster.local.volumes import (
    ConfigMaps,
    check_volumes,
    with_local_paths,
    write_volumes,
)
from ddp_operator.reconcile.claims import CLAIM
from ddp_operator.reconcile.plan import Event
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire import contract
from ddp_wire.contract import Env
from ddp_wire.machine import cpu_count
from ddp_wire.messages import AttemptOrder, InspectionRequest
from ddp_wire.processes import adopt_orphans

MAX_NODES = 100
"""Maximum number of nodes. The last number of their addresses is 100 to 199."""
CLAIM_FIELD = "spec.checkpoint.claimName"
PATH_FIELD = "spec.checkpoint.path"
_DELETE_GRACE_SECONDS = 60.0


class LocalCluster:
    """Jobs in memory whose pods run on this machine. Create the object inside the event loop."""

    def __init__(
        self,
        home: Path,
        on_job: Callable[[Manifest], None],
        on_child: Callable[[str, Manifest, bool], None],
        on_event: Callable[[Event], None],
        config_maps: ConfigMaps | None = None,
        *,
        gpus: Sequence[str] = (),
    ) -> None:
        """Create a cluster without jobs. It reports changes to the given callbacks.

        Args:
            home: Folder of volumes and logs.
            on_job: Function that is called with each new state of a job.
            on_child: Function that is called with the kind, the object, and whether it is gone.
            on_event: Function that is called with each Event.
            config_maps: ConfigMaps that pods may mount.
            gpus: GPUs of this machine, by name.

        Raises:
            ClusterError: This machine has no free loopback addresses.
        """
        self._home, self._config_maps = home.absolute(), config_maps or {}
        self._gpus = gpus
        self._on_job, self._on_child, self._on_event = on_job, on_child, on_event
        self._versions = itertools.count(1)
        self._jobs: dict[Key, Manifest] = {}
        self._pods: dict[Key, LocalPod] = {}
        self._others: dict[tuple[str, Key], Manifest] = {}
        """Children that are no pods, by kind and key."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._network = LocalNetwork()
        self._session = aiohttp.ClientSession()
        self._agents = Agents()
        self._lost_nodes = LostNodes(self._home)
        self._lost_nodes.clear()
        self._outages = asyncio.ensure_future(self._follow_outages())
        adopt_orphans()

    async def close(self) -> None:
        """Stop all pods and wait until they are gone."""
        self._outages.cancel()
        await asyncio.gather(*(pod.delete(_DELETE_GRACE_SECONDS) for pod in self._pods.values()))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        await self._agents.close()
        self._network.close()

    def kill(self) -> None:
        """Kill all pods without a grace period."""
        for pod in self._pods.values():
            self._spawn(pod.delete(0.0))

    def put_job(self, job: Manifest) -> None:
        """Create a job or replace its spec, as `kubectl apply` does.

        A new job keeps the status and the creation time of its manifest.
        """
        metadata = job["metadata"]
        known = self._jobs.get((metadata["namespace"], metadata["name"]))
        generation = known["metadata"]["generation"] + 1 if known else 1
        status = (known or job).get("status", {})
        created = (known or job)["metadata"].get("creationTimestamp") or _timestamp()
        own = {"generation": generation, "creationTimestamp": created}
        self._store({**job, "metadata": {**metadata, **own}, "status": status})

    def log_file(self, pod: str) -> Path:
        """Return the path of the log of all pods of this name. The file need not exist yet."""
        return self._home / "logs" / f"{pod}.log"

    async def get_job(self, key: Key) -> Manifest | None:
        """Implement `Cluster.get_job`."""
        return self._jobs.get(key)

    async def list_pods(
        self,
        namespace: str,
        labels: Mapping[str, str],
        expected: int,  # noqa: ARG002
    ) -> Listing:
        """Implement `Cluster.list_pods`."""
        found = [
            pod.manifest
            for (where, _), pod in self._pods.items()
            if where == namespace and labels.items() <= pod.manifest["metadata"]["labels"].items()
        ]
        return Listing(found, next(self._versions))

    async def create(
        self, manifest: Manifest, on_restored: Callable[[str], None] = lambda _: None
    ) -> Manifest:
        """Implement `Cluster.create`. No other writer changes the children of a local job."""
        del on_restored
        metadata = manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        created = {**manifest, "metadata": {**metadata, "uid": str(uuid.uuid4())}}
        self._set_version(created)
        kind = manifest["kind"]
        if kind == CLAIM:
            created["status"] = {"phase": "Bound"}  # The claim is a folder.
        if kind != "Pod":
            known = self._others.setdefault((kind, key), created)
            self._on_child(kind, known, False)
            return known
        if key not in self._pods:
            created["status"] = {"phase": "Pending"}
            try:
                self._pods[key] = pod = self._make_pod(created)
            except OSError as error:
                raise ClusterError(f"{self._home}: {error}") from error
            self._spawn(self._run(key, pod))
        return self._pods[key].manifest

    async def delete_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None
    ) -> None:
        """Implement `Cluster.delete_pod`."""
        pod = self._pods.get((namespace, name))
        if pod is None or pod.uid != uid:
            return
        if pod.manifest["status"]["phase"] in {"Succeeded", "Failed"}:
            del self._pods[namespace, name]
            self._on_child("Pod", pod.manifest, True)
        elif "deletionTimestamp" not in pod.manifest["metadata"]:
            grace = _DELETE_GRACE_SECONDS if grace_seconds is None else grace_seconds
            due = datetime.now(UTC) + timedelta(seconds=grace)
            pod.manifest["metadata"] |= {
                "deletionTimestamp": due.isoformat(),
                "deletionGracePeriodSeconds": grace,
            }
            self._publish(pod)
            self._spawn(pod.delete(grace))

    async def delete_child(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Implement `Cluster.delete_child`. A local job has no child that its operator deletes."""

    async def patch_claim(
        self,
        namespace: str,
        name: str,
        uid: str,  # noqa: ARG002
        patch: Mapping[str, Any],  # noqa: ARG002
    ) -> Manifest | None:
        """Implement `Cluster.patch_claim`. The folder of a local claim has no size and no owner."""
        return self._others.get((CLAIM, (namespace, name)))

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> Manifest | None:
        """Implement `Cluster.annotate_pod`."""
        pod = self._pods.get((namespace, name))
        if pod is None or pod.uid != uid:
            return None
        pod.manifest["metadata"]["annotations"] |= annotations
        try:
            pod.project_annotations()
        except OSError as error:
            raise ClusterError(f"{self._home}: {error}") from error
        self._publish(pod)
        return pod.manifest

    async def end_pod(self, namespace: str, name: str, uid: str) -> None:
        """Implement `Cluster.end_pod`. Do nothing, because a local pod has one container."""

    async def delete_job(self, key: Key, uid: str) -> None:
        """Implement `Cluster.delete_job`."""
        job = self._jobs.get(key)
        if job is not None and job["metadata"]["uid"] == uid:
            del self._jobs[key]

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Implement `Cluster.write_status`."""
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        known = self._jobs.get(key)
        version = job["metadata"]["resourceVersion"]
        if known is None or known["metadata"]["resourceVersion"] != version:
            raise ConflictError(f"job {key[1]} was changed since it was read")
        return self._store({**known, "metadata": dict(known["metadata"]), "status": status})

    async def emit(self, job: Manifest, event: Event) -> None:  # noqa: ARG002 (there is only one job)
        """Implement `Cluster.emit`."""
        self._on_event(event)

    async def newest_warning(self, namespace: str, uid: str) -> str | None:  # noqa: ARG002
        """Implement `Cluster.newest_warning`. Local pods have no Events."""
        return None

    async def newest_event(self, namespace: str, uid: str) -> str | None:  # noqa: ARG002
        """Implement `Cluster.newest_event`. Local claims have no Events."""
        return None

    async def queue_message(self, namespace: str, group: str) -> str:  # noqa: ARG002
        """Implement `Cluster.queue_message`. No queue holds local pods."""
        return ""

    async def delete_workload(self, namespace: str, group: str) -> None:
        """Implement `Cluster.delete_workload`. No queue holds local pods."""

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        """Implement `Cluster.watch_agent_status`."""
        if not pod.ip:
            return AgentAnswer()
        return await self._agents.watch_status(
            pod.ip, pod.secret, revision, seconds, pod.agent_port
        )

    def send_order(self, address: str, port: int, secret: str, order: AttemptOrder) -> None:
        """Implement `Cluster.send_order`."""
        self._agents.send_order(address, secret, order, port)

    def send_inspection(self, pods: Sequence[PodView], request: InspectionRequest) -> None:
        """Implement `Cluster.send_inspection`."""
        self._agents.send_inspection(
            [(pod.ip, pod.agent_port, pod.secret) for pod in pods if pod.ip], request
        )

    def _store(self, job: Manifest) -> Manifest:
        self._set_version(job)
        self._jobs[job["metadata"]["namespace"], job["metadata"]["name"]] = job
        self._on_job(job)
        return job

    def _set_version(self, manifest: Manifest) -> None:
        manifest["metadata"]["resourceVersion"] = str(next(self._versions))

    def _publish(self, pod: LocalPod) -> None:
        # A watch delivers copies, so an observed object must never change afterwards.
        pod.manifest = {**pod.manifest, "metadata": dict(pod.manifest["metadata"])}
        self._set_version(pod.manifest)
        self._on_child("Pod", pod.manifest, False)

    async def _run(self, key: Key, pod: LocalPod) -> None:
        if await self._has_node(pod):
            await pod.run(self._session)
        if "deletionTimestamp" in pod.manifest["metadata"] and self._pods.get(key) is pod:
            del self._pods[key]
            self._on_child("Pod", pod.manifest, True)

    async def _has_node(self, pod: LocalPod) -> bool:
        """Wait while the node of a new pod is lost. Return False if the pod is deleted."""
        while pod.node in self._lost_nodes.read():
            if "deletionTimestamp" in pod.manifest["metadata"]:
                return False
            if "conditions" not in pod.manifest["status"]:
                pod.manifest["status"] = waiting_status(pod.node)
                self._publish(pod)
            await asyncio.sleep(POLL_SECONDS)
        return "deletionTimestamp" not in pod.manifest["metadata"]

    async def _follow_outages(self) -> None:
        """Delete the pods of lost nodes without a grace period, until the cluster is closed."""
        while True:
            lost = self._lost_nodes.read()
            for (namespace, name), pod in list(self._pods.items()) if lost else ():
                if pod.node in lost and pod.runs:
                    await self.delete_pod(namespace, name, pod.uid, 0)
            await asyncio.sleep(POLL_SECONDS)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_pod(self, manifest: Manifest) -> LocalPod:
        home = self._home / "pods" / manifest["metadata"]["uid"]
        check_runs_locally(manifest, self._config_maps)
        paths = write_volumes(manifest, self._config_maps, home / "volumes")
        own = container_environment(manifest).items()
        environment = self._with_addresses({n: with_local_paths(text, paths) for n, text in own})
        if "PYTHONPATH" in environment and (inherited := os.environ.get("PYTHONPATH")):
            environment["PYTHONPATH"] += os.pathsep + inherited  # The agent may be installed there.
        index = int(manifest["metadata"]["labels"].get(contract.LABEL_NODE_INDEX, 0))
        environment |= {
            Env.AGENT_BIND: self._network.address(index),
            Env.POD_INFO_DIR: str(home),
            Env.TERMINATION_LOG: str(home / "termination.json"),
        }
        if Env.CHECKPOINT_DIR in environment:
            subpath = Path(environment[Env.CHECKPOINT_DIR]).relative_to(contract.CHECKPOINT_MOUNT)
            claims = [v["persistentVolumeClaim"] for v in _checkpoint_volumes(manifest)]
            claim = inside(self._home / "volumes", claims[0]["claimName"], CLAIM_FIELD)
            environment[Env.CHECKPOINT_DIR] = str(inside(claim, str(subpath), PATH_FIELD))
        own_part: dict[str, str] = {}
        if Env.NODE_INDEX in environment:  # An init step runs alone and has the whole machine.
            own_part = share.share_of_pod(environment, os.environ, self._gpus, cpu_count())
        variables = {**os.environ, **own_part, **environment}
        log_file = self.log_file(manifest["metadata"]["name"])
        return LocalPod(manifest, home, log_file, variables, self._publish)

    def _with_addresses(self, environment: dict[str, str]) -> dict[str, str]:
        """Replace the DNS names of pods by addresses, because local pods have no DNS."""
        if Env.NODE_INDEX not in environment:  # No other pod connects to that of an init step.
            return environment
        resolved = dict(environment)
        resolved[Env.RENDEZVOUS_HOST] = self._network.address(0)
        resolved[Env.ADDRESS_PATTERN] = self._network.address_pattern
        resolved[Env.POD_ADDRESS] = self._network.address(int(environment[Env.NODE_INDEX]))
        resolved[Env.RENDEZVOUS_PORT_BASE] = str(self._network.rendezvous_ports)
        return resolved


def _timestamp() -> str:
    """Return the current time as the API server writes it."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def _checkpoint_volumes(manifest: Manifest) -> list[dict[str, Any]]:
    return [v for v in manifest["spec"]["volumes"] if v["name"] == CHECKPOINT_VOLUME]


def check_runs_locally(manifest: Manifest, config_maps: ConfigMaps) -> None:
    """Check that a worker pod can run on this machine with the given ConfigMaps.

    Raises:
        ClusterError: The pod needs a feature that only a cluster has, or a field has the wrong
            type.
    """
    check_shape(manifest)
    if int(container_environment(manifest).get(Env.NODE_INDEX, 0)) >= MAX_NODES:
        raise ClusterError(f"spec.nodes: must be at most {MAX_NODES} without a cluster")
    for volume in _checkpoint_volumes(manifest):
        inside(Path(), volume["persistentVolumeClaim"]["claimName"], CLAIM_FIELD)
    check_volumes(manifest, config_maps)
