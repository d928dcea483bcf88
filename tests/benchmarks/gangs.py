"""What is measured side by side: one training, by a DDPJob and by torchrun in a StatefulSet."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pydantic import ValidationError

from ddp_wire.contract import Beat, Env, RankPhase
from tests.cluster.support import Job
from tests.harness.cluster import Cluster
from tests.tools import install
from tests.tools.install import eventually

JSON = dict[str, Any]

NODES, RANKS = 2, 4
TASK = "ddp_trainer.tasks.miniresnet:build"
CONFIG = {"max_steps": 1_000_000, "global_batch": 256, "eval_every_steps": 1_000_000}
"""A run that outlasts the measurement."""
SAVE_EVERY_STEPS = 20
RESOURCES = {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}}
"""A pod without a request for CPU yields to whatever else runs, here the control plane."""
TRACE = {
    "noticed": "noticed",
    "decided": "decided",
    "told": "told",
    "torn down": "tornDown",
    "forked": "forked",
    "rendezvous": "rendezvous",
    "process group": "processGroup",
    "first step": "firstStep",
}
"""Parts of a recovery, and how `status.lastRecovery` calls them."""
START_SECONDS = 180.0
"""How long a set-up may take until it trains."""


class SetUp(Protocol):
    """One gang under measurement, and how to begin anew with a fresh one."""

    label: str

    @property
    def cluster(self) -> Cluster: ...
    @property
    def namespace(self) -> str: ...
    def pods(self) -> list[JSON]: ...
    def beats(self) -> list[tuple[JSON, Beat]]: ...
    def begin(self) -> None:
        """Make a fresh set-up and wait until it trains."""
        ...

    def end(self) -> None:
        """Remove the set-up with all its pods."""
        ...

    def worn(self) -> bool:
        """Whether what was done to it would weigh on the next recovery."""
        ...

    def parts(self, began: float) -> dict[str, float]:
        """Seconds after the fault by part of the recovery; empty where nobody tells."""
        ...


def trains(gang: SetUp, since: float = 0.0) -> bool:
    """Whether every rank has done its first update after a time, and still trains."""
    beats = [beat for _, beat in gang.beats()]
    fresh = [b for b in beats if (b.first_step_at or 0.0) > since and b.phase is RankPhase.TRAINING]
    return len({beat.rank for beat in fresh}) == RANKS


def has_saved(gang: SetUp) -> bool:
    """Whether rank 0 has saved since its first update."""
    leaders = [beat for _, beat in gang.beats() if beat.rank == 0]
    return any(
        beat.checkpoint is not None and beat.checkpoint.at > (beat.first_step_at or beat.at)
        for beat in leaders
    )


@dataclass
class Ours:
    """A DDPJob."""

    cluster: Cluster
    namespace: str
    label: str = "ours"
    _made: int = 0
    _job: Job | None = None

    @property
    def job(self) -> Job:
        """The job of the set-up that was begun last."""
        assert self._job is not None
        return self._job

    def pods(self) -> list[JSON]:
        return self.job.pods()

    def beats(self) -> list[tuple[JSON, Beat]]:
        return self.job.beats()

    def begin(self) -> None:
        self._made += 1
        self._job = Job.apply(self.cluster, self.namespace, self._manifest())
        eventually(lambda: trains(self), "the job trains", START_SECONDS)

    def end(self) -> None:
        self.job.kubectl("delete", "ddpjob", self.job.name)
        eventually(lambda: not self.pods(), "its pods are gone", START_SECONDS)

    def worn(self) -> bool:
        return False

    def parts(self, began: float) -> dict[str, float]:
        """By the trace in the job's status, which counts from when the first one saw the fault."""
        traces: list[JSON] = []

        def traced() -> bool:
            status = self.job.status
            trace = status.get("lastRecovery", {})
            if trace.get("attempt") == status["attempt"] and "firstStepMilliseconds" in trace:
                traces.append(trace)
            return bool(traces)

        eventually(traced, "the trace of the recovery", START_SECONDS)
        trace = traces[0]
        seen = datetime.fromisoformat(trace["time"]).timestamp() - began
        known = {part: trace.get(f"{key}Milliseconds") for part, key in TRACE.items()}
        return {part: seen + ms / 1000 for part, ms in known.items() if ms is not None}

    def _manifest(self) -> JSON:
        return {
            "apiVersion": "ddp-trainer.dev/v1alpha1",
            "kind": "DDPJob",
            "metadata": {"name": f"ours-{self._made}"},
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


@dataclass
class Torchrun:
    """torchrun by itself in a StatefulSet, as its documentation and most guides have it."""

    cluster: Cluster
    namespace: str
    label: str
    options: tuple[str, ...] = ()
    """Further options of torchrun."""
    host_options: tuple[str, str] = ("", "")
    """An option that differs: on pod 0, and on the others."""
    env: dict[str, str] = field(default_factory=dict)
    name: str = ""
    _made: int = 0

    PORT: ClassVar[int] = 29400

    def pods(self) -> list[JSON]:
        selector = f"app={self.name}"
        found = self._kubectl("get", "pods", "-l", selector, "-o", "json")
        pods: list[JSON] = json.loads(found)["items"]
        return pods

    def beats(self) -> list[tuple[JSON, Beat]]:
        found = []
        for pod in self.pods():
            folder = self._folder / "beats" / pod["metadata"]["name"]
            for file in folder.glob("*.json"):
                try:
                    beat = Beat.model_validate_json(file.read_bytes())
                except (OSError, ValidationError):
                    continue  # It is being replaced.
                found.append((pod, beat))
        return found

    def begin(self) -> None:
        self._made += 1
        self.name = f"{self.label.replace(' ', '-')}-{self._made}"
        for document in (self._service(), self._stateful_set()):
            self._kubectl("apply", "-f", "-", input=json.dumps(document))
        eventually(lambda: trains(self), f"{self.name} trains", START_SECONDS)

    def end(self) -> None:
        # Its grace period is no part of what is measured.
        self._kubectl("delete", "statefulset,service", self.name, "--cascade=orphan")
        self._kubectl("delete", "pods", "-l", f"app={self.name}", "--grace-period=0", "--force")
        eventually(lambda: not self.pods(), "its pods are gone", START_SECONDS)

    def worn(self) -> bool:
        """Kubernetes waits twice as long with every restart of a container."""
        counts = [s["restartCount"] for p in self.pods() for s in p["status"]["containerStatuses"]]
        return any(counts)

    def parts(self, began: float) -> dict[str, float]:
        del began
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
            "OMP_NUM_THREADS": "1",  # What the agent gives its ranks on two cores.
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
    """torchrun as it comes."""
    return Torchrun(cluster, namespace, "torchrun default")


def tuned_torchrun(cluster: Cluster, namespace: str) -> Torchrun:
    """torchrun with every setting that is known to help."""
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
