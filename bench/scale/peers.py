"""Compare ddp-trainer's operator with its peers: one job each, in turn, on one control plane.

The peers are Kubeflow Training Operator v1 (PyTorchJob) and Kubeflow Trainer v2 with JobSet
(TrainJob). Each is measured as shipped and tuned. They run as processes, with these differences
from an installation in a cluster:

- Each manager uses a certificate of its own user, who has the ClusterRole cluster-admin.
- Leader election is off, so that a manager acts as soon as it has started.
- Webhooks are those of the shipped manifests. The API server reaches them through a Service of the
  type ExternalName. The managers create their own certificates, which the benchmark copies to the
  folder where a kubelet would mount them.
- The Job controller creates the pods of a TrainJob. Its client limits are the Kubernetes defaults
  for the shipped variant, and raised for the tuned one. All other gangs use the controller manager
  only to delete objects.
- Ports differ from the defaults.

A tuned variant has client limits above what this control plane can answer, and more workers.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.scale import peer_manifests as manifests
from bench.scale.audit import Audit, Request, by_verb, last_pod_created
from bench.scale.meter import cpu_seconds
from bench.scale.peer_install import JOBSET, TRAINER, TRAINING_OPERATOR, Peers
from bench.scale.peer_process import (
    Manager,
    controller_manager,
    controller_manager_pid,
    running,
)
from bench.scale.stage import Stage, job
from tests.api.client import Api, eventually, path_of
from tests.api.control_plane import OPERATOR

_NAME = "gang"
_JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
_SETTLE_SECONDS = 5.0
"""Time for the caches of a new manager to fill before its run."""
_QUIET_SECONDS = 5.0
"""Seconds without a new object after which a gang's requests and CPU time are no longer counted."""
_LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class Gang:
    """One operator with its options, and the function that builds its job.

    Attributes:
        name: Its name in the table.
        users: Users of the processes that make pods of a job.
        managers: Its processes; none for our operator, which always runs.
        controller_manager: Further arguments of the controller manager.
        creates_by_job: Whether the Job controller creates the pods.
        tuned: Whether its client limits are raised.
    """

    name: str
    users: tuple[str, ...]
    managers: tuple[Manager, ...] = ()
    controller_manager: tuple[str, ...] = ()
    creates_by_job: bool = False
    tuned: bool = False

    @property
    def jobs(self) -> str:
        """URL path of the operator's jobs, with a placeholder for the namespace."""
        if not self.managers:
            return path_of("ddpjobs", "{namespace}")
        return manifests.TRAIN_JOBS if self.creates_by_job else manifests.PYTORCH_JOBS

    def job(self, pods: int, pod: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest of a job whose pods equal a given pod."""
        if not self.managers:
            return job(_NAME, pods)
        if self.creates_by_job:
            return manifests.train_job(_NAME, pods)
        return manifests.pytorch_job(_NAME, pods, pod)


@dataclass
class Run:
    """Figures of one job of one operator."""

    created: float = 0.0
    """Seconds from apply to the last pod's creation."""
    requests: int = 0
    """Number of requests of the operator's processes until they have created no object for 5 s."""
    requests_by_verb: str = ""
    cpu_seconds: float = 0.0
    """CPU seconds of the operator's processes for these requests, including a controller manager
    that creates pods."""
    controller_manager_seconds: float = 0.0
    """CPU seconds of the controller manager alone, in the same period."""
    gone: float = 0.0
    """Seconds from the deletion of the job to the end of its last pod."""


@dataclass
class Comparison:
    """All runs by the name of the operator, in the order of the repeats."""

    pods: int
    ours: str = "DDPJob"
    tuned: tuple[str, ...] = ()
    """Names of the tuned peer operators."""
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def ratio(self) -> float:
        """Return our time as a multiple of the fastest tuned peer's: the median over the repeats.

        Each repeat has its own fastest peer.
        """
        peers = zip(*(self.runs[name] for name in self.tuned), strict=True)
        pairs = zip(self.runs[self.ours], peers, strict=True)
        ratios = [ours.created / min(one.created for one in best) for ours, best in pairs]
        return float(median(ratios))


async def beside_peers(stage: Stage, pods: int, repeats: int, folder: Path) -> Comparison:
    """Measure one job of each operator in turn, and repeat. Print each run."""
    peers = await asyncio.to_thread(Peers.install, stage.plane.cluster, folder)
    gangs, bench = _gangs(peers), _Bench(stage, peers, pods)
    found = Comparison(pods, tuned=tuple(gang.name for gang in gangs if gang.tuned))
    for repeat in range(repeats):
        # Every repeat begins with another gang, so that none always has the freshest control plane.
        first = repeat % len(gangs)
        for number, gang in enumerate(gangs[first:] + gangs[:first]):
            run = await bench.run(gang, f"peers-{repeat}-{number}")
            found.runs.setdefault(gang.name, []).append(run)
            print(f"{pods:,} pods, repeat {repeat + 1}, {gang.name}: {run}", flush=True)
    return found


def _gangs(peers: Peers) -> list[Gang]:
    """Return our operator, then each peer as shipped and tuned. The peers copy our pod."""
    gangs = [Gang("DDPJob", (OPERATOR,))]
    for tuned in (False, True):
        name = f"PyTorchJob, {'tuned' if tuned else 'as shipped'}"
        manager = (peers.training_operator(tuned=tuned),)
        arguments = peers.controller_manager(tuned=True) if tuned else ()
        gangs.append(Gang(name, (TRAINING_OPERATOR,), manager, arguments, tuned=tuned))
    for tuned in (False, True):
        name = f"TrainJob, {'tuned' if tuned else 'as shipped'}"
        managers = (peers.jobset(tuned=tuned), peers.trainer(tuned=tuned))
        users = (TRAINER, JOBSET, _JOB_CONTROLLER)
        arguments = peers.controller_manager(tuned=tuned)
        gangs.append(Gang(name, users, managers, arguments, creates_by_job=True, tuned=tuned))
    return gangs


@dataclass
class _Bench:
    """The control plane with the peer operators, and the size of the measured job."""

    stage: Stage
    peers: Peers
    pods: int
    pod: dict[str, Any] = field(default_factory=dict)
    """One pod of our operator, which the pods of the peers copy."""

    async def run(self, gang: Gang, namespace: str) -> Run:
        """Start an operator's processes, measure one job, and stop the processes."""
        async with AsyncExitStack() as stack:
            options = controller_manager(gang.controller_manager)
            await asyncio.to_thread(stack.enter_context, options)
            pids = [] if gang.managers else [self.stage.pid]
            for manager in gang.managers:
                kubeconfig = self.peers.kubeconfigs[manager.user]
                process = running(manager, kubeconfig, self.peers.folder, self.stage.api)
                pids.append((await stack.enter_async_context(process)).pid)
            run = await self._measure(gang, namespace, pids)
            run.gone = await _delete(self.stage.api, namespace, gang.jobs)
        return run

    async def _measure(self, gang: Gang, namespace: str, pids: list[int]) -> Run:
        """Apply one job and wait until all its pods exist."""
        api, run = self.stage.api, Run()
        await api.create_namespace(namespace)
        if gang.creates_by_job:
            runtimes = manifests.RUNTIMES.format(namespace=namespace)
            await api.call("POST", runtimes, manifests.training_runtime(self.pod))
        await asyncio.sleep(_SETTLE_SECONDS)
        manager, pods = controller_manager_pid(), path_of("pods", namespace)
        audit, used, used_by_manager = self.stage.audit(), _cpu(pids), cpu_seconds(manager)
        applied = time.time()
        await api.call("POST", gang.jobs.format(namespace=namespace), gang.job(self.pods, self.pod))

        async def all_created() -> bool:
            return await _count(api, pods) >= self.pods

        await eventually(all_created, f"{self.pods} pods exist", _LIMIT_SECONDS, every=0.25)
        mine = await self._all_requests(gang, audit, namespace)
        run.controller_manager_seconds = cpu_seconds(manager) - used_by_manager
        run.cpu_seconds = _cpu(pids) - used
        run.cpu_seconds += run.controller_manager_seconds if gang.creates_by_job else 0.0
        run.created = last_pod_created(mine) - applied
        run.requests, run.requests_by_verb = len(mine), by_verb(mine)
        await eventually(lambda: _all_run(api, pods), "all pods run", _LIMIT_SECONDS, every=1.0)
        if not gang.managers:
            self.pod = (await api.call("GET", pods, query={"limit": "1"}))["items"][0]
        return run

    async def _all_requests(self, gang: Gang, audit: Audit, namespace: str) -> list[Request]:
        """Wait until an operator creates no more objects, and return its requests until then."""
        before = 0
        async with asyncio.timeout(_LIMIT_SECONDS):
            while True:
                requests = await self.stage.all_requests(audit, namespace)
                mine = [request for request in requests if request.user in gang.users]
                created = [one for one in mine if one.verb == "create" and one.resource != "events"]
                if len(created) == before:
                    return mine
                before = len(created)
                await asyncio.sleep(_QUIET_SECONDS)


async def _delete(api: Api, namespace: str, jobs: str) -> float:
    """Delete the job and wait for its objects. Return the seconds until its pods were gone."""
    jobs, pods = jobs.format(namespace=namespace), path_of("pods", namespace)

    async def is_gone(*paths: str) -> bool:
        return not any([await _count(api, path) for path in paths])

    started = time.monotonic()
    await api.call("DELETE", f"{jobs}/{_NAME}")
    await eventually(lambda: is_gone(jobs, pods), "all pods are gone", _LIMIT_SECONDS, every=0.1)
    gone = time.monotonic() - started
    services = path_of("services", namespace)
    await eventually(lambda: is_gone(services), "all Services are gone", _LIMIT_SECONDS, every=1.0)
    return gone


async def _all_run(api: Api, pods: str) -> bool:
    """Return whether all pods are bound to a node and run."""
    query = {"fieldSelector": "status.phase!=Running", "limit": "1"}
    return not (await api.call("GET", pods, query=query))["items"]


async def _count(api: Api, path: str) -> int:
    """Return the number of objects at a path. Request at most one object for this."""
    answer = await api.call("GET", path, query={"limit": "1"})
    rest: int = answer["metadata"].get("remainingItemCount", 0)
    return len(answer["items"]) + rest


def _cpu(pids: list[int]) -> float:
    return sum(map(cpu_seconds, pids))
