"""A cluster without Kubernetes: pods are processes on loopback addresses of this machine."""

import asyncio
import errno
import itertools
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from ddp_operator.cluster.agents import Agents
from ddp_operator.cluster.base import ClusterError, ConflictError, Key, Manifest
from ddp_operator.cluster.local_pod import LocalPod, container_environment
from ddp_operator.cluster.local_volumes import (
    ConfigMaps,
    place_volumes,
    refuse_volumes,
    with_local_paths,
)
from ddp_operator.reconcile.plan import Event
from ddp_operator.reconcile.world import PodView
from ddp_wire import contract
from ddp_wire.contract import AgentStatus, AttemptOrder, Env
from ddp_wire.processes import adopt_orphans

MAX_NODES = 150
_FIRST_HOST = 100
"""Three digits for every node: torchrun sorts addresses as strings."""
_DELETE_GRACE_SECONDS = 60.0


class LocalCluster:
    """Holds jobs in memory and runs their pods here. Make it inside the running event loop."""

    def __init__(
        self,
        home: Path,
        on_job: Callable[[Manifest], None],
        on_child: Callable[[str, Manifest, bool], None],
        on_event: Callable[[Event], None],
        config_maps: ConfigMaps | None = None,
    ) -> None:
        """`home` keeps volumes and logs; pods may mount `config_maps`.

        The callbacks are the watch: `on_child` gets the kind, the object, and whether it is gone.

        Raises:
            ClusterError: This machine has no loopback addresses to give.
        """
        self._home, self._config_maps = home.absolute(), config_maps or {}
        self._on_job, self._on_child, self._on_event = on_job, on_child, on_event
        self._versions = itertools.count(1)
        self._jobs: dict[Key, Manifest] = {}
        self._pods: dict[Key, LocalPod] = {}
        self._services: dict[Key, Manifest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._network = _free_network()
        self._session = aiohttp.ClientSession()
        self._agents = Agents()
        adopt_orphans()

    async def close(self) -> None:
        """End every pod and wait until all are gone."""
        await asyncio.gather(*(pod.delete(_DELETE_GRACE_SECONDS) for pod in self._pods.values()))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        await self._agents.close()

    def kill(self) -> None:
        """End every pod at once."""
        for pod in self._pods.values():
            self._spawn(pod.delete(0.0))

    def put_job(self, job: Manifest) -> None:
        """Create a job or replace its spec, as `kubectl apply` would."""
        metadata = job["metadata"]
        known = self._jobs.get((metadata["namespace"], metadata["name"]))
        generation = known["metadata"]["generation"] + 1 if known else 1
        status = known.get("status", {}) if known else {}
        self._store({**job, "metadata": {**metadata, "generation": generation}, "status": status})

    def log_files(self) -> list[Path]:
        """Logs of the pods that exist."""
        return [pod.log_file for pod in self._pods.values()]

    async def get_job(self, key: Key) -> Manifest | None:
        """See `Cluster`."""
        return self._jobs.get(key)

    async def list_pods(self, namespace: str, labels: Mapping[str, str]) -> Sequence[Manifest]:
        """See `Cluster`."""
        return [
            pod.manifest
            for (where, _), pod in self._pods.items()
            if where == namespace and labels.items() <= pod.manifest["metadata"]["labels"].items()
        ]

    async def create(self, manifest: Manifest) -> Manifest:
        """See `Cluster`."""
        metadata = manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        made = {**manifest, "metadata": {**metadata, "uid": str(uuid.uuid4())}}
        self._stamp(made)
        if manifest["kind"] == "Service":
            self._services.setdefault(key, made)
            self._on_child("Service", self._services[key], False)
            return self._services[key]
        if key not in self._pods:
            made["status"] = {"phase": "Pending"}
            self._pods[key] = pod = self._make_pod(made)
            self._spawn(self._run(key, pod))
        return self._pods[key].manifest

    async def delete_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None
    ) -> None:
        """See `Cluster`."""
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
            self._changed(pod)
            self._spawn(pod.delete(grace))

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> Manifest | None:
        """See `Cluster`."""
        pod = self._pods.get((namespace, name))
        if pod is None or pod.uid != uid:
            return None
        pod.manifest["metadata"]["annotations"] |= annotations
        pod.project_annotations()
        self._changed(pod)
        return pod.manifest

    async def delete_job(self, key: Key, uid: str) -> None:
        """See `Cluster`."""
        job = self._jobs.get(key)
        if job is not None and job["metadata"]["uid"] == uid:
            del self._jobs[key]

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """See `Cluster`."""
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        known = self._jobs.get(key)
        version = job["metadata"]["resourceVersion"]
        if known is None or known["metadata"]["resourceVersion"] != version:
            raise ConflictError(f"job {key[1]} has changed")
        return self._store({**known, "metadata": dict(known["metadata"]), "status": status})

    async def emit(self, job: Manifest, event: Event) -> None:  # noqa: ARG002 (there is one job)
        """See `Cluster`."""
        self._on_event(event)

    async def ask_agent(self, pod: PodView) -> AgentStatus | None:
        """See `Cluster`."""
        return await self._agents.ask(pod.ip, insist=pod.ready) if pod.ip else None

    async def await_agent(self, pod: PodView, revision: int) -> AgentStatus | None:
        """See `Cluster`."""
        return await self._agents.news(pod.ip, revision) if pod.ip else None

    async def order_attempt(self, address: str, order: AttemptOrder) -> None:
        """See `Cluster`."""
        await self._agents.order(address, order)

    def _store(self, job: Manifest) -> Manifest:
        self._stamp(job)
        self._jobs[job["metadata"]["namespace"], job["metadata"]["name"]] = job
        self._on_job(job)
        return job

    def _stamp(self, manifest: Manifest) -> None:
        manifest["metadata"]["resourceVersion"] = str(next(self._versions))

    def _changed(self, pod: LocalPod) -> None:
        # The watch delivers copies: what was observed must not change under the observer.
        pod.manifest = {**pod.manifest, "metadata": dict(pod.manifest["metadata"])}
        self._stamp(pod.manifest)
        self._on_child("Pod", pod.manifest, False)

    async def _run(self, key: Key, pod: LocalPod) -> None:
        await pod.run(self._session)
        if "deletionTimestamp" in pod.manifest["metadata"] and self._pods.get(key) is pod:
            del self._pods[key]
            self._on_child("Pod", pod.manifest, True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_pod(self, manifest: Manifest) -> LocalPod:
        home = self._home / "pods" / manifest["metadata"]["uid"]
        refuse_what_needs_a_cluster(manifest, self._config_maps)
        places = place_volumes(manifest, self._config_maps, home / "volumes")
        own = container_environment(manifest).items()
        environment = self._resolve({name: with_local_paths(text, places) for name, text in own})
        if "PYTHONPATH" in environment and (ours := os.environ.get("PYTHONPATH")):
            environment["PYTHONPATH"] += os.pathsep + ours  # the agent is found there too
        index = int(manifest["metadata"]["labels"][contract.LABEL_NODE_INDEX])
        environment |= {
            Env.AGENT_BIND: self._address(index),
            Env.POD_INFO_DIR: str(home),
            Env.TERMINATION_LOG: str(home / "termination.json"),
        }
        if Env.CHECKPOINT_DIR in environment:
            within = Path(environment[Env.CHECKPOINT_DIR]).relative_to(contract.CHECKPOINT_MOUNT)
            claims = [v["persistentVolumeClaim"] for v in _checkpoint_volumes(manifest)]
            directory = self._home / "volumes" / claims[0]["claimName"] / within
            environment[Env.CHECKPOINT_DIR] = str(directory)
        return LocalPod(manifest, home, {**os.environ, **environment}, self._changed)

    def _address(self, index: int) -> str:
        return f"{self._network}.{_FIRST_HOST + index}"

    def _resolve(self, environment: dict[str, str]) -> dict[str, str]:
        """Put addresses for the DNS names of pods, which have no DNS here."""
        found = dict(environment)
        found[Env.RENDEZVOUS_HOST] = self._address(0)
        found[Env.POD_ADDRESS] = self._address(int(environment[Env.NODE_INDEX]))
        return found


def _checkpoint_volumes(manifest: Manifest) -> list[dict[str, Any]]:
    return [v for v in manifest["spec"]["volumes"] if v["name"] == "ddp-checkpoint"]


def refuse_what_needs_a_cluster(manifest: Manifest, config_maps: ConfigMaps) -> None:
    """Check that a worker pod can be run here, with the ConfigMaps that come with it.

    Raises:
        ClusterError: It asks for something that only a cluster has.
    """
    if int(container_environment(manifest)[Env.NODES]) > MAX_NODES:
        raise ClusterError(f"spec.nodes: at most {MAX_NODES} without a cluster")
    refuse_volumes(manifest, config_maps)


def _free_network() -> str:
    """The first three numbers of loopback addresses that no other run uses.

    Raises:
        ClusterError: There are none.
    """
    start, taken = os.getpid() % 250, False
    for offset in range(250):
        network = f"127.77.{(start + offset) % 250}"
        with socket.socket() as probe:
            try:
                probe.bind((f"{network}.{_FIRST_HOST}", contract.AGENT_PORT))
            except OSError as error:
                taken = taken or error.errno == errno.EADDRINUSE
                continue
        return network
    if taken:
        port = contract.AGENT_PORT
        raise ClusterError(f"port {port} must be free: another program listens on every address")
    raise ClusterError(
        "loopback addresses 127.77.x.y must be usable: on macOS add them first,"
        " as `sudo ifconfig lo0 alias 127.77.0.100`"
    )
