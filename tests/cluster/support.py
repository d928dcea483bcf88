"""What the cluster tests share: jobs as a person applies them, and what a person then sees."""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddp_wire.contract import AGENT_PORT, AgentStatus, Beat
from tests.harness.cluster import Cluster
from tests.tools.install import OPERATOR_USER, ROOT, eventually

JSON = dict[str, Any]


def sample(name: str = "digits") -> JSON:
    """A manifest of the samples folder."""
    text = (ROOT / "manifests" / "samples" / f"{name}.yaml").read_text(encoding="utf-8")
    document: JSON = yaml.safe_load(text)
    return document


def script_job(name: str, script: str, **spec: Any) -> JSON:
    """A job whose ranks run a Python script."""
    return {
        "apiVersion": "ddp-trainer.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": {"nodes": 2, "procsPerNode": 2, "command": ["python", "-c", script], **spec},
    }


def long_job(name: str = "digits", epochs: int = 60, **config: Any) -> JSON:
    """The sample, long enough to be struck, with a checkpoint each 20 updates."""
    manifest = sample()
    manifest["metadata"]["name"] = name
    manifest["spec"]["config"] |= {"epochs": epochs, **config}
    manifest["spec"]["checkpoint"] |= {"everySteps": 20}
    # Without a request it would yield to the control plane, which runs on the same cores here.
    manifest["spec"]["resources"] = {"requests": {"cpu": "400m"}}
    return manifest


MEET = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
"""
"""Ranks that meet and are done."""

STEADY = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(3000):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
"""
"""Ranks that need each other for five minutes and report nothing."""


@dataclass(frozen=True)
class Job:
    """A job in the cluster."""

    cluster: Cluster
    namespace: str
    name: str

    @classmethod
    def apply(cls, cluster: Cluster, namespace: str, manifest: JSON) -> "Job":
        """`kubectl apply`."""
        cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(manifest))
        return cls(cluster, namespace, manifest["metadata"]["name"])

    def kubectl(self, *args: str, check: bool = True) -> str:
        """Run kubectl in the job's namespace; its output."""
        return self.cluster.kubectl("-n", self.namespace, *args, check=check).stdout

    def read(self) -> JSON:
        """The job."""
        document: JSON = json.loads(self.kubectl("get", "ddpjob", self.name, "-o", "json"))
        return document

    @property
    def status(self) -> JSON:
        """Its status; empty before there is one."""
        found: JSON = self.read().get("status", {})
        return found

    @property
    def reason(self) -> str:
        """What the STATUS column shows."""
        conditions = {c["type"]: c for c in self.status.get("conditions", [])}
        return str(conditions.get("Succeeded", {}).get("reason", ""))

    def row(self, *flags: str) -> dict[str, str]:
        """What `kubectl get ddpjobs` shows, by column."""
        head, line = self.kubectl("get", "ddpjob", self.name, *flags).splitlines()[:2]
        starts = [i for i, c in enumerate(head) if c != " " and (i == 0 or head[i - 1] == " ")]
        ends = [*starts[1:], None]
        cells = zip(starts, ends, strict=True)
        return {head[a:b].strip(): line[a:b].strip() for a, b in cells}

    def pods(self) -> list[JSON]:
        """Its pods."""
        selector = f"ddp-trainer.dev/job-name={self.name}"
        found = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))
        pods: list[JSON] = found["items"]
        return pods

    def words(self) -> list[tuple[JSON, AgentStatus]]:
        """What the agents of all running pods say, each with its pod."""
        here = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
        words = [(pod, ask(pod["status"].get("podIP"))) for pod in here]
        return [(pod, said) for pod, said in words if said is not None]

    def beats(self) -> list[tuple[JSON, Beat]]:
        """The newest beat of each rank, with its pod."""
        return [(pod, beat) for pod, said in self.words() for beat in said.ranks]

    @property
    def saved_step(self) -> int:
        """The newest committed step that the status knows of; 0 before there is one."""
        return int(self.status.get("lastCheckpoint", {}).get("step", 0))

    def wait_for_a_checkpoint(self) -> int:
        """Wait until a step is saved that was not saved before; that step."""
        before = self.saved_step
        eventually(lambda: self.saved_step > before, "a new checkpoint", 120)
        return self.saved_step

    def uids(self) -> dict[str, str]:
        """The identity of each pod, by its name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()}

    @property
    def run_directory(self) -> Path:
        """The run's directory on the shared volume, as this machine sees it."""
        uid = self.read()["metadata"]["uid"]
        return self.cluster.shared_dir / self.namespace / f"{self.name}-{uid}"

    def wait_for(self, reason: str, seconds: float = 120.0) -> JSON:
        """Wait until STATUS shows a reason; the status then. Says what it saw when it does not."""
        try:
            eventually(lambda: self.reason == reason, reason, seconds)
        except TimeoutError as error:
            story = self.kubectl("describe", "ddpjob", self.name, check=False)
            logs = self.kubectl("logs", "-l", f"ddp-trainer.dev/job-name={self.name}", check=False)
            raise AssertionError(f"{error}\n{story}\n{logs}") from error
        return self.status


def ask(address: str | None) -> AgentStatus | None:
    """What the agent at an address says; None while it starts or ends."""
    if address is None:
        return None
    try:
        with urllib.request.urlopen(f"http://{address}:{AGENT_PORT}/status", timeout=1) as said:
            return AgentStatus.model_validate_json(said.read())
    except OSError:
        return None


def agents(job: Job) -> list[AgentStatus]:
    """What the agents of all running pods say."""
    return [said for _, said in job.words()]


def operator_requests(cluster: Cluster, namespace: str | None = None) -> list[JSON]:
    """Requests of the operator, of one namespace or all, from the audit log.

    The ends of watches are left out, and the renewals of its Lease, which no job causes.
    """
    lines = cluster.audit_log.read_text(encoding="utf-8").splitlines()
    entries: list[JSON] = [json.loads(line) for line in lines]
    mine = [e for e in entries if e["user"]["username"] == OPERATOR_USER and e["verb"] != "watch"]
    caused = [e for e in mine if e.get("objectRef", {}).get("resource") != "leases"]
    if namespace is None:
        return caused
    return [e for e in caused if e.get("objectRef", {}).get("namespace") == namespace]
