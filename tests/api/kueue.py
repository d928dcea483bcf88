"""The stand-in for Kueue on a real API server: its webhook, and the moves of its controller."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from aiohttp import web

from ddp_operator.api.gang import GangType
from ddp_operator.builders.gangs.kueue import GROUP, QUEUE
from ddp_operator.builders.gangs.versions import KUEUE, Gangs
from tests.api.client import Api, RefusedError, eventually, path_of
from tests.api.in_process_operator import DEFAULTS, InProcessOperator, OperatorEnvironment
from tests.api.simulated_job import SimulatedJob
from tests.harness import paths
from tests.harness.pki import Authority
from tests.scenarios.kueue import (
    ADMITTED_SELECTOR,
    Kueue,
    Move,
    Release,
    Stop,
    Ungate,
    webhook,
    workload_of,
)
from tests.scenarios.kueue_runs import (
    LOST_NODE,
    Delete,
    Disturbance,
    Disturber,
    LoseNode,
    broken_rules,
    job_spec,
    script,
)
from tests.scenarios.pods import TERMINAL, EndContainer, RemovePod, ReportStatus, ended_status

JSON = dict[str, Any]

KUEUE_DEFAULTS = replace(
    DEFAULTS, gangs=Gangs(types=(GangType.KUEUE,), served=((GangType.KUEUE, KUEUE),))
)
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NAME = "kueue-stand-in"
_GONE = {404, 409}
_OPERATOR_LIFE = 15
"""Simulated seconds after which another operator process takes over."""
_MOST_ROUNDS = 20
WORKLOADS = f"/apis/{KUEUE}/namespaces/{{namespace}}/workloads"


@asynccontextmanager
async def kueue_webhook(api: Api) -> AsyncIterator[None]:
    """Let the API server call the webhook for each new pod with a queue."""

    async def review(request: web.Request) -> web.Response:
        asked = (await request.json())["request"]
        pod = asked["object"]
        changed = webhook({**pod, "metadata": {"annotations": {}, **pod["metadata"]}})
        whole = [{"op": "replace", "path": "", "value": changed}]
        patch = base64.b64encode(json.dumps(whole).encode()).decode()
        answer = {"uid": asked["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**document, "response": answer})

    authority = Authority(paths.STATE / "pki")
    pair = authority.issue(_NAME, _NAME, server_names=["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    app = web.Application()
    app.router.add_post("/", review)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        [(_, port)] = runner.addresses
        certificate = base64.b64encode(authority.pair.certificate.read_bytes()).decode()
        await api.call("POST", _WEBHOOKS, _configuration(port, certificate))
        try:
            yield
        finally:
            await api.call("DELETE", f"{_WEBHOOKS}/{_NAME}")
    finally:
        await runner.cleanup()


def _configuration(port: int, certificate: str) -> JSON:
    hook = {
        "name": "pods.kueue.example",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": certificate},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
            }
        ],
        "objectSelector": {"matchExpressions": [{"key": QUEUE, "operator": "Exists"}]},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": _NAME}, "webhooks": [hook]}


async def wait_for_webhook(api: Api, namespace: str) -> None:
    """Wait until the API server calls the webhook."""
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    body = {
        "metadata": {"name": "probe", "labels": {QUEUE: "any"}},
        "spec": {
            "containers": [{"name": "c", "image": "none", "securityContext": restricted}],
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }

    async def called() -> bool:
        try:
            made = await api.call("POST", path_of("pods", namespace), body, {"dryRun": "All"})
        except RefusedError:
            return False  # It still calls the webhook of the test before.
        return bool(made["metadata"].get("finalizers"))

    await eventually(called, "the API server calls the webhook")


@asynccontextmanager
async def workload_kind(api: Api) -> AsyncIterator[None]:
    """Let the API server serve Kueue's Workloads, without their schema."""
    group, _, version = KUEUE.partition("/")
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True}
    name = f"workloads.{group}"
    crd = {
        "metadata": {
            "name": name,
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Workload", "plural": "workloads", "singular": "workload"},
            "versions": [{**served, "schema": {"openAPIV3Schema": free}}],
        },
    }
    await api.call("POST", _CRDS, crd)

    async def is_served() -> bool:
        groups = [one["name"] for one in (await api.call("GET", "/apis"))["groups"]]
        return group in groups and await api.find(WORKLOADS.format(namespace="default")) is not None

    try:
        await eventually(is_served, "the API server serves Workloads")
        yield
    finally:
        await api.call("DELETE", f"{_CRDS}/{name}")

        async def is_gone() -> bool:
            return await api.find(f"{_CRDS}/{name}") is None

        await eventually(is_gone, "the API server has forgotten Workloads")


class KueueJob(SimulatedJob):
    """A job under Kueue on a real API server, with random disturbances."""

    def __init__(
        self, environment: OperatorEnvironment, namespace: str, kueue: Kueue, *, seed: int = 0
    ) -> None:
        super().__init__(environment, namespace, script(), defaults=KUEUE_DEFAULTS)
        self.kueue, self._seed = kueue, seed
        self.disturber = Disturber(seed, 0, kueue, self._scripted)
        self._operator = self.new_operator()
        self._made: set[str] = set()
        """Workloads that exist as objects."""
        self._ends: dict[str, tuple[int, str]] = {}
        """Seconds until the phase of a pod shows its end, and that phase, by the pod's uid."""

    async def start(self, name: str, disturbances: int = 0, **spec: Any) -> None:
        """Create the job, which the given number of disturbances will hit."""
        self.disturber = Disturber(self._seed, disturbances, self.kueue, self._scripted)
        given = job_spec(name) | spec
        manifest = {"apiVersion": "ddp-trainer.dev/v1alpha1", "kind": "DDPJob", "spec": given}
        given.setdefault("task", "ddp_trainer.tasks.miniresnet:build")
        await self.apply({**manifest, "metadata": {"name": self.name}})

    async def play(self, seconds: int) -> None:
        """Play until the job has completed and its pods have been released."""
        for second in range(seconds):
            if second % _OPERATOR_LIFE == 0:
                self._operator = self.new_operator()
            await self.settle()
            pods = await self.pods()
            if "completionTime" in await self.status() and not any(map(_is_held, pods)):
                return
            await asyncio.gather(*(self.disturb(one) for one in self.disturber.step(pods)))
            if self.disturber.is_over:
                self._scripted.finish_after(3)
            await self._move_pods()
        raise AssertionError(
            f"not over after {seconds} s: {await self.summary()}, {await self._shown()}"
        )

    async def pass_seconds(self, seconds: int) -> None:
        """Let some simulated seconds pass without disturbances, and settle."""
        for _ in range(seconds):
            await self.settle()
            await self._move_pods()
        await self.settle()

    async def settle(self) -> InProcessOperator:
        """Let the operator and Kueue act until neither has anything to do. Return the operator."""
        await self._operator.reconcile_until_idle()
        for _ in range(_MOST_ROUNDS):
            pods = await self.pods()
            assert not broken_rules(pods)
            moves = await self._sync_workloads(pods) or self.kueue.step(pods)
            await asyncio.gather(*(self.apply_move(move) for move in moves))
            if not moves:
                return self._operator
        raise AssertionError(f"Kueue does not settle: {moves}")

    async def _sync_workloads(self, pods: Sequence[JSON]) -> list[Move]:
        """Create the Workload objects of groups. Return the moves for those that are deleted."""
        api, path = self.environment.api, WORKLOADS.format(namespace=self.namespace)
        found = {one["metadata"]["name"] for one in (await api.call("GET", path))["items"]}
        groups = {GROUP in p["metadata"]["labels"] and workload_of(p) for p in pods} - {False}
        known = {name for name in self.kueue.workloads if name in groups}
        moves: list[Move] = []
        for name in known & (self._made - found):
            self._made.discard(name)
            moves += self.kueue.delete(name, pods)
        for name in list(self._made - known):  # With its last pod.
            if name in found:
                await api.call("DELETE", f"{path}/{name}")
            self._made.discard(name)
        for name in known & self.kueue.workloads.keys() - self._made:
            member = next(pod for pod in pods if workload_of(pod) == name)
            await api.call("POST", path, workload_object(name, member))
            self._made.add(name)
        return moves

    async def apply_move(self, move: Move) -> None:
        """Change a pod as Kueue does."""
        if isinstance(move, Ungate):
            spec: JSON = {"schedulingGates": [], "nodeSelector": ADMITTED_SELECTOR}
            await self._call("PATCH", move.pod, {"spec": spec})
        elif isinstance(move, Release):
            await self._call("PATCH", move.pod, {"metadata": {"finalizers": None}})
        else:
            await self._stop(move)

    async def disturb(self, disturbance: Disturbance) -> None:
        """Let a pod be lost or stopped."""
        pod = disturbance.pod
        if isinstance(disturbance, EndContainer):
            await self._end(disturbance)
        elif isinstance(disturbance, LoseNode):
            self._ends[pod["metadata"]["uid"]] = disturbance.seconds, "Failed"
            self.environment.agents.set_agent(pod["status"].get("podIP", ""), None)
            await self.kubelet.set_status(pod, {"conditions": [LOST_NODE]})
            await self._call("DELETE", pod)
        elif isinstance(disturbance, Delete):
            await self._call("DELETE", pod)
        else:
            await self._stop(disturbance)

    async def _stop(self, move: Stop) -> None:
        target = {
            "type": "TerminationTarget",
            "status": "True",
            "reason": move.reason,
            "message": move.message,
        }
        known = [c for c in move.pod["status"].get("conditions", ()) if c["type"] != target["type"]]
        await self.kubelet.set_status(move.pod, {"conditions": [*known, target]})
        await self._call("DELETE", move.pod)

    async def _end(self, move: EndContainer) -> None:
        """Report the end of a container, and a second later that of its pod, as a kubelet does."""
        status = ended_status(move.code, move.status)
        self._ends[move.pod["metadata"]["uid"]] = 1, status.pop("phase")
        self.environment.agents.set_agent(move.pod["status"].get("podIP", ""), None)
        await self.kubelet.set_status(move.pod, status)

    async def _end_pods(self, pods: Sequence[JSON]) -> None:
        known = {pod["metadata"]["uid"]: pod for pod in pods}
        for uid, (seconds, phase) in list(self._ends.items()):
            pod = known.get(uid)
            if pod is not None and seconds > 0:
                self._ends[uid] = seconds - 1, phase
                continue
            del self._ends[uid]
            if pod is not None:
                await self._report_end(pod, phase)

    async def _report_end(self, pod: JSON, phase: str = "Failed") -> None:
        """Report the end of a pod. Remove the pod if it is deleted and no finalizer keeps it."""
        self.environment.agents.set_agent(pod["status"].get("podIP", ""), None)
        if "nodeName" not in pod["spec"]:
            return  # It has no kubelet.
        if pod["status"]["phase"] not in TERMINAL:
            await self.kubelet.set_status(pod, {"phase": phase})
        if "deletionTimestamp" in pod["metadata"]:
            await self.kubelet.remove(pod)

    async def _move_pods(self) -> None:
        pods = await self.pods()
        await self._end_pods(pods)
        nodes = job["spec"]["nodes"] if (job := await self.job()) is not None else 0
        present = [pod for pod in await self.pods() if pod["metadata"]["uid"] not in self._ends]
        for move in self._scripted.step(present, nodes, self.now):
            if isinstance(move, ReportStatus):
                await self.kubelet.report_status(move.pod, move.status, ready=move.ready)
            elif isinstance(move, RemovePod):
                await self._report_end(move.pod)
            else:
                await self._end(move)
        self.tick()

    async def _call(self, method: str, pod: JSON, body: JSON | None = None) -> None:
        """Change a pod, unless it is gone or another one has its name."""
        uid = pod["metadata"]["uid"]
        if method == "DELETE":
            body = {"preconditions": {"uid": uid}}
        else:
            body = {**(body or {}), "metadata": {**(body or {}).get("metadata", {}), "uid": uid}}
        path = path_of("pods", self.namespace, pod["metadata"]["name"])
        try:
            await self.environment.api.call(method, path, body)
        except RefusedError as refused:
            if refused.status not in _GONE:
                raise

    async def _shown(self) -> list[tuple[str, str, Any]]:
        return [
            (p["metadata"]["name"], p["status"]["phase"], p["metadata"].get("finalizers"))
            for p in await self.pods()
        ]


def workload_object(name: str, member: JSON) -> JSON:
    """Return the object of a Workload, with those of its fields that limit its deletion."""
    containers = [
        {key: one[key] for key in ("name", "command") if key in one}
        for one in member["spec"]["containers"]
    ]
    return {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"podSets": [{"template": {"spec": {"containers": containers}}}]},
    }


def _is_held(pod: JSON) -> bool:
    return bool(pod["metadata"].get("finalizers"))
