"""What the cluster tests share: jobs as a person applies them, and what a person then sees."""

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

import yaml

from ddp_agent.contract import AGENT_PORT, AgentStatus, Beat
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
        found = []
        for pod in self.pods():
            address = pod["status"].get("podIP")
            if address is None or "deletionTimestamp" in pod["metadata"]:
                continue
            url = f"http://{address}:{AGENT_PORT}/status"
            try:
                with urllib.request.urlopen(url, timeout=1) as said:
                    found.append((pod, AgentStatus.model_validate_json(said.read())))
            except OSError:
                continue  # It starts or ends.
        return found

    def beats(self) -> list[tuple[JSON, Beat]]:
        """The newest beat of each rank, with its pod."""
        return [(pod, beat) for pod, said in self.words() for beat in said.ranks]

    def wait_for(self, reason: str, seconds: float = 120.0) -> JSON:
        """Wait until STATUS shows a reason; the status then. Says what it saw when it does not."""
        try:
            eventually(lambda: self.reason == reason, reason, seconds)
        except TimeoutError as error:
            story = self.kubectl("describe", "ddpjob", self.name, check=False)
            logs = self.kubectl("logs", "-l", f"ddp-trainer.dev/job-name={self.name}", check=False)
            raise AssertionError(f"{error}\n{story}\n{logs}") from error
        return self.status


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
