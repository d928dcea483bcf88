"""Start the measured gangs: the same training as a DDPJob and as torchrun in a StatefulSet."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pydantic import ValidationError

from ddp_wire.contract import Env
from ddp_wire.messages import Heartbeat, RankPhase
from tests.cluster.support import Job, UnaskedJob
from tests.harness import install
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

JSON = dict[str, Any]

NODES, RANKS = 2, 4
TASK = "ddp_trainer.tasks.miniresnet:build"
CONFIG = {"max_steps": 1_000_000, "global_batch": 256, "eval_every_steps": 1_000_000}
"""Configuration of a training run that lasts longer than the measurement."""
SAVE_EVERY_STEPS = 20
RESOURCES = {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}}
"""Resources of each pod. Without a CPU request the kernel would prefer the control plane, which
uses the same cores."""
PHASES = {
    "noticed": "noticed",
    "decided": "decided",
    "ordered": "ordered",
    "torn down": "tornDown",
    "forked": "forked",
    "rendezvous": "rendezvous",
    "process group": "processGroup",
    "first step": "firstStep",
}
"""Phases of a recovery, each with its field in `status.lastRecovery`."""
START_SECONDS = 180.0
"""Maximum seconds until a new gang trains."""


class MeasuredGang(Protocol):
    """A gang whose recovery is measured. It can be replaced by a new gang."""

    label: str

    @property
    def cluster(self) -> Cluster: ...
    @property
    def namespace(self) -> str: ...
    def pods(self) -> list[JSON]: ...
    def heartbeats(self) -> list[tuple[JSON, Heartbeat]]: ...
    def start(self) -> None:
        """Create a new gang and wait until it trains."""
        ...

    def stop(self) -> None:
        """Delete the gang with all its pods."""
        ...

    def affects_next_recovery(self) -> bool:
        """Return whether an earlier fault would affect the next recovery."""
        ...

    def stands_by(self) -> bool:
        """Return whether everything that replaces a lost pod is ready."""
        ...

    def phases(self, started: float) -> dict[str, float]:
        """Return the seconds after the fault by phase of the recovery; empty if unknown."""
        ...


def trains(gang: MeasuredGang, since: float = 0.0) -> bool:
    """Return whether every rank trains and did its first update after the given time."""
    heartbeats = [heartbeat for _, heartbeat in gang.heartbeats()]
    fresh = [
        b for b in heartbeats if (b.first_step_at or 0.0) > since and b.phase is RankPhase.TRAINING
    ]
    return len({heartbeat.rank for heartbeat in fresh}) == RANKS


def newest_step(gang: MeasuredGang) -> int:
    """Return the highest number of completed updates that a rank reports."""
    return max((heartbeat.step for _, heartbeat in gang.heartbeats()), default=0)


def has_saved(gang: MeasuredGang) -> bool:
    """Return whether rank 0 has saved a checkpoint since its first update."""
    leaders = [heartbeat for _, heartbeat in gang.heartbeats() if heartbeat.rank == 0]
    return any(
        heartbeat.checkpoint is not None
        and heartbeat.checkpoint.at > (heartbeat.first_step_at or heartbeat.at)
        for heartbeat in leaders
    )


@dataclass
class Ours:
    """A gang that a DDPJob runs."""

    cluster: Cluster
    namespace: str
    label: str = "ours"
    _count: int = 0
    _job: Job | None = None

    job_class: ClassVar[type[Job]] = Job

    @property
    def job(self) -> Job:
        """The DDPJob that was created last."""
        assert self._job is not None
        return self._job

    def pods(self) -> list[JSON]:
        return self.job.pods()

    def heartbeats(self) -> list[tuple[JSON, Heartbeat]]:
        return self.job.heartbeats()

    def start(self) -> None:
        self._count += 1
        self._job = self.job_class.apply(self.cluster, self.namespace, self._manifest())
        eventually(lambda: trains(self), "the job trains", START_SECONDS)

    def stop(self) -> None:
        self.job.kubectl("delete", "ddpjob", self.job.name)
        eventually(lambda: not self.pods(), "its pods are deleted", START_SECONDS)

    def affects_next_recovery(self) -> bool:
        return False

    def stands_by(self) -> bool:
        return True

    def state_lines(self) -> list[str]:
        """Return what the pods print about the state from which they start and that they keep."""
        lines = []
        for pod in self.pods():
            name = pod["metadata"]["name"]
            log = self.job.kubectl("logs", name, "--tail=2000", "--ignore-errors=true")
            words = (" kept ", "in memory", "resumed at", "ddp-agent: attempt")
            lines += [f"{name} {one}" for one in log.splitlines() if any(w in one for w in words)]
        return lines

    def phases(self, started: float) -> dict[str, float]:
        """Return the times in the job's `status.lastRecovery`, counted from the fault."""
        traces: list[JSON] = []

        def traced() -> bool:
            status = self.job.status
            trace = status.get("lastRecovery", {})
            if trace.get("attempt") == status["attempt"] and "firstStepMilliseconds" in trace:
                traces.append(trace)
            return bool(traces)

        eventually(traced, "the status has the trace of the recovery", START_SECONDS)
        trace = traces[0]
        seen = datetime.fromisoformat(trace["time"]).timestamp() - started
        known = {part: trace.get(f"{key}Milliseconds") for part, key in PHASES.items()}
        return {part: seen + ms / 1000 for part, ms in known.items() if ms is not None}

    def _manifest(self) -> JSON:
        return {
            "apiVersion": "ddp-trainer.dev/v1alpha1",
            "kind": "DDPJob",
            "metadata": {"name": f"ours-{self._count}"},
            "spec": {
                "nodes": NODES,
                "procsPerNode": RANKS // NODES,
                "task": TASK,
                "config": CONFIG,
                "checkpoint": {"claimName": install.CLAIM, "everySteps": SAVE_EVERY_STEPS},
                "resources": RESOURCES,
                "maxRestarts": 10_000,
                "maxInfrastructureRestarts": 10_000,
            },
        }


class SparedOurs(Ours):
    """A gang that a DDPJob with a spare pod runs."""

    def stands_by(self) -> bool:
        return self.job.status.get("spares") == "1/1"

    def _manifest(self) -> JSON:
        manifest = super()._manifest()
        manifest["metadata"]["name"] += "-spare"
        manifest["spec"]["spares"] = 1
        return manifest


class UnreachableOurs(Ours):
    """A gang of a DDPJob whose agents the operator cannot reach."""

    job_class = UnaskedJob

    def affects_next_recovery(self) -> bool:
        """Return whether the operator would delay the next attempt by more than 1 s.

        The operator delays the attempt that follows one without progress. Without agents it learns
        of checkpoints only from pods that end by themselves.
        """
        return int(self.job.status["attemptsWithoutProgress"]) > 1

    def phases(self, started: float) -> dict[str, float]:
        """Return no phases, because the operator receives no times from the agents."""
        del started
        return {}


@dataclass
class Torchrun:
    """A gang that torchrun runs in a StatefulSet, configured as in its documentation."""

    cluster: Cluster
    namespace: str
    label: str
    options: tuple[str, ...] = ()
    """Additional options of torchrun."""
    host_options: tuple[str, str] = ("", "")
    """Option of torchrun for pod 0, and the matching option for all other pods."""
    env: dict[str, str] = field(default_factory=dict)
    name: str = ""
    _count: int = 0

    PORT: ClassVar[int] = 29400

    def pods(self) -> list[JSON]:
        selector = f"app={self.name}"
        found = self._kubectl("get", "pods", "-l", selector, "-o", "json")
        pods: list[JSON] = json.loads(found)["items"]
        return pods

    def heartbeats(self) -> list[tuple[JSON, Heartbeat]]:
        found = []
        for pod in self.pods():
            folder = self._folder / "beats" / pod["metadata"]["name"]
            for file in folder.glob("*.json"):
                try:
                    heartbeat = Heartbeat.model_validate_json(file.read_bytes())
                except (OSError, ValidationError):
                    continue  # The rank is replacing the file.
                found.append((pod, heartbeat))
        return found

    def start(self) -> None:
        self._count += 1
        self.name = f"{self.label.replace(' ', '-')}-{self._count}"
        for document in (self._service(), self._stateful_set()):
            self._kubectl("apply", "-f", "-", input=json.dumps(document))
        eventually(lambda: trains(self), f"{self.name} trains", START_SECONDS)

    def stop(self) -> None:
        # Skip the grace period, which is not measured.
        self._kubectl("delete", "statefulset,service", self.name, "--cascade=orphan")
        self._kubectl("delete", "pods", "-l", f"app={self.name}", "--grace-period=0", "--force")
        eventually(lambda: not self.pods(), "its pods are deleted", START_SECONDS)

    def stands_by(self) -> bool:
        return True

    def affects_next_recovery(self) -> bool:
        """Return whether a container restarted, because that doubles its next CrashLoopBackOff."""
        counts = [s["restartCount"] for p in self.pods() for s in p["status"]["containerStatuses"]]
        return any(counts)

    def phases(self, started: float) -> dict[str, float]:
        del started
        return {}

    @property
    def _folder(self) -> Path:
        return self.cluster.shared_dir / self.namespace / self.name

    def _kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 (as kubectl)
        return self.cluster.kubectl("-n", self.namespace, *args, input=input).stdout

    def _service(self) -> JSON:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {"app": self.name},
            },
        }

    def _stateful_set(self) -> JSON:
        labels = {"app": self.name}
        return {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": self.name},
            "spec": {
                "serviceName": self.name,
                "replicas": NODES,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": self._pod_spec()},
            },
        }

    def _pod_spec(self) -> JSON:
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": self.name}},
        }
        return {
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "topologySpreadConstraints": [spread],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [self._container()],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "shared", "persistentVolumeClaim": {"claimName": install.CLAIM}},
            ],
        }

    def _container(self) -> JSON:
        run = f"/shared/{self.name}"
        env = {
            Env.TASK: TASK,
            Env.CONFIG: json.dumps(CONFIG),
            Env.CHECKPOINT_DIR: run,
            Env.CHECKPOINT_EVERY_STEPS: str(SAVE_EVERY_STEPS),
            Env.BEATS_DIR: f"{run}/beats/$(POD)",
            "OMP_NUM_THREADS": "1",  # The agent sets the same for two ranks on two cores.
            **self.env,
        }
        pod = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        return {
            "name": "worker",
            "image": f"{install.REPOSITORY}/trainer:{install.VERSION}",
            "command": ["sh", "-c", self._line()],
            "env": [pod, *({"name": str(k), "value": v} for k, v in env.items())],
            "resources": RESOURCES,
            "volumeMounts": [
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "shm", "mountPath": "/dev/shm"},
                {"name": "shared", "mountPath": "/shared"},
            ],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }

    def _line(self) -> str:
        first = f"{self.name}-0"
        host = f"{first}.{self.name}.{self.namespace}.svc.cluster.local"
        line = [
            f"torchrun --nnodes={NODES} --nproc-per-node={RANKS // NODES}",
            f"--rdzv-backend=c10d --rdzv-endpoint={host}:{self.PORT} --rdzv-id={self.name}",
            *self.options,
            '"$@" -m ddp_trainer train',
        ]
        on_first, elsewhere = self.host_options
        choose = f'if [ "$POD" = {first} ]; then set -- {on_first}; else set -- {elsewhere}; fi; '
        return (choose if on_first else "") + "exec " + " ".join(line)


def default_torchrun(cluster: Cluster, namespace: str) -> Torchrun:
    """Return torchrun with its default settings."""
    return Torchrun(cluster, namespace, "torchrun default")


def tuned_torchrun(cluster: Cluster, namespace: str) -> Torchrun:
    """Return torchrun with every setting that is known to help."""
    conf = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1,join_timeout=600"
    return Torchrun(
        cluster,
        namespace,
        "torchrun tuned",
        options=("--max-restarts=1000", "--shutdown-timeout=5"),
        host_options=(
            f"--rdzv-conf=is_host=true,{conf}",
            f"--rdzv-conf=is_host=false,{conf}",
        ),
        env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"},
    )
