"""Jobs on the real cluster: create them as a user does, and read what a user sees."""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from ddp_operator.reconcile.pod_view import view_pod
from ddp_wire.contract import AGENT_PORT
from ddp_wire.messages import AgentStatus, Heartbeat
from ddp_wire.signatures import NONCE_HEADER, SIGNATURE_HEADER, random_text, sign_request
from tests.fault_player.unreachable import heartbeats_inside
from tests.harness.cluster import Cluster
from tests.harness.install import OPERATOR_USER, ROOT, eventually

JSON = dict[str, Any]


def sample(name: str = "digits") -> JSON:
    """Return a manifest of the samples folder."""
    text = (ROOT / "manifests" / "samples" / f"{name}.yaml").read_text(encoding="utf-8")
    document: JSON = yaml.safe_load(text)
    return document


def script_job(name: str, script: str, **spec: Any) -> JSON:
    """Return a job whose ranks run a Python script."""
    return {
        "apiVersion": "ddp-trainer.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": {"nodes": 2, "procsPerNode": 2, "command": ["python", "-c", script], **spec},
    }


EVERY_UPDATE = {"every_steps": 1, "format": "json"}
"""Settings of a log from which the time of each update can be read."""


def long_job(name: str = "digits", epochs: int = 60, **config: Any) -> JSON:
    """Return the sample with enough updates for a fault, and a checkpoint each 20 updates."""
    manifest = sample()
    manifest["metadata"]["name"] = name
    manifest["spec"]["config"] |= {"epochs": epochs, **config}
    manifest["spec"]["checkpoint"] |= {"everySteps": 20}
    # Without a CPU request the kernel would prefer the control plane on the same cores.
    manifest["spec"]["resources"] = {"requests": {"cpu": "400m"}}
    return manifest


ENDLESS_EPOCHS = 100_000
"""Epochs of a run that outlasts its test."""

BARRIER_SCRIPT = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
"""
"""Ranks that meet at a barrier and exit 0."""

STEADY_SCRIPT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(3000):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
"""
"""Ranks that reduce a tensor together for five minutes and report nothing."""


@dataclass(frozen=True)
class Job:
    """A job in the cluster."""

    cluster: Cluster
    namespace: str
    name: str

    @classmethod
    def apply(cls, cluster: Cluster, namespace: str, manifest: JSON) -> Self:
        """Create a job, as `kubectl apply` does."""
        cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(manifest))
        return cls(cluster, namespace, manifest["metadata"]["name"])

    def kubectl(self, *args: str, check: bool = True) -> str:
        """Run kubectl in the job's namespace and return its output."""
        return self.cluster.kubectl("-n", self.namespace, *args, check=check).stdout

    def read(self) -> JSON:
        """Return the job."""
        document: JSON = json.loads(self.kubectl("get", "ddpjob", self.name, "-o", "json"))
        return document

    @property
    def status(self) -> JSON:
        """The job's status; empty before the first one."""
        found: JSON = self.read().get("status", {})
        return found

    @property
    def reason(self) -> str:
        """Content of the STATUS column."""
        conditions = {c["type"]: c for c in self.status.get("conditions", [])}
        return str(conditions.get("Succeeded", {}).get("reason", ""))

    def row(self, *flags: str) -> dict[str, str]:
        """Return the row of `kubectl get ddpjobs`, by column."""
        head, line = self.kubectl("get", "ddpjob", self.name, *flags).splitlines()[:2]
        starts = [i for i, c in enumerate(head) if c != " " and (i == 0 or head[i - 1] == " ")]
        ends = [*starts[1:], None]
        cells = zip(starts, ends, strict=True)
        return {head[a:b].strip(): line[a:b].strip() for a, b in cells}

    def pods(self) -> list[JSON]:
        """Return the job's pods."""
        selector = f"ddp-trainer.dev/job-name={self.name}"
        found = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))
        pods: list[JSON] = found["items"]
        return pods

    def agent_statuses(self) -> list[tuple[JSON, AgentStatus]]:
        """Return the statuses of all running agents, each with its pod."""
        here = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
        statuses = [(pod, query_agent(pod)) for pod in here]
        return [(pod, status) for pod, status in statuses if status is not None]

    def heartbeats(self) -> list[tuple[JSON, Heartbeat]]:
        """Return the newest heartbeat of each rank, with its pod."""
        return [
            (pod, heartbeat) for pod, status in self.agent_statuses() for heartbeat in status.ranks
        ]

    @property
    def saved_step(self) -> int:
        """The newest committed step in the status; 0 before the first one."""
        return int(self.status.get("lastCheckpoint", {}).get("step", 0))

    def wait_for_checkpoint(self) -> int:
        """Wait until a newer step is committed, and return it."""
        before = self.saved_step
        eventually(lambda: self.saved_step > before, "a new checkpoint", 120)
        return self.saved_step

    def uids(self) -> dict[str, str]:
        """Return the uid of each pod by its name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()}

    @property
    def run_directory(self) -> Path:
        """The run's directory on the shared volume, as a path of this machine."""
        uid = self.read()["metadata"]["uid"]
        return self.cluster.shared_dir / self.namespace / f"{self.name}-{uid}"

    def wait_for(self, reason: str, seconds: float = 120.0) -> JSON:
        """Wait until STATUS shows a reason, and return the status.

        Raises:
            AssertionError: STATUS did not show the reason in time; the text has events and logs.
        """
        try:
            eventually(lambda: self.reason == reason, reason, seconds)
        except TimeoutError as error:
            description = self.kubectl("describe", "ddpjob", self.name, check=False)
            logs = self.kubectl("logs", "-l", f"ddp-trainer.dev/job-name={self.name}", check=False)
            raise AssertionError(f"{error}\n{description}\n{logs}") from error
        return self.status


class UnaskedJob(Job):
    """A job whose agents the test never polls, because an agent notices that it was read."""

    def heartbeats(self) -> list[tuple[JSON, Heartbeat]]:
        """Return the newest heartbeat of each rank from the files in the containers."""
        return [(pod, beat) for pod in self.pods() for beat in heartbeats_inside(pod)]

    def has_saved_in(self, attempt: int) -> bool:
        """Return whether a rank has reported a checkpoint of an attempt to its agent."""
        saved = [beat.checkpoint for _, beat in self.heartbeats() if beat.checkpoint]
        return any(one.step > 0 and one.path.endswith(f".attempt-{attempt}") for one in saved)


def query_agent(pod: JSON) -> AgentStatus | None:
    """Return the status of a pod's agent; None while it does not answer."""
    address = pod["status"].get("podIP")
    if address is None:
        return None
    nonce, secret = random_text(), view_pod(pod).secret
    signature = sign_request(secret, nonce, "GET", "/status")
    url = f"http://{address}:{AGENT_PORT}/status"
    headers = {NONCE_HEADER: nonce, SIGNATURE_HEADER: signature}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=1) as response:  # noqa: S310
            return AgentStatus.model_validate_json(response.read())
    except OSError:
        return None


def agents(job: Job) -> list[AgentStatus]:
    """Return the statuses of all running agents."""
    return [status for _, status in job.agent_statuses()]


def operator_requests(cluster: Cluster, namespace: str | None = None) -> list[JSON]:
    """Return the operator's requests in one namespace or in all, from the audit log.

    Ends of watches and Lease renewals are left out, because no job causes them.
    """
    lines = cluster.audit_log.read_text(encoding="utf-8").splitlines()
    entries: list[JSON] = [json.loads(line) for line in lines]
    mine = [e for e in entries if e["user"]["username"] == OPERATOR_USER and e["verb"] != "watch"]
    caused = [e for e in mine if e.get("objectRef", {}).get("resource") != "leases"]
    if namespace is None:
        return caused
    return [e for e in caused if e.get("objectRef", {}).get("namespace") == namespace]
