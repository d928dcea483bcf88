"""A control plane with the product's CRD, and the operator's user with the chart's limits."""

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.harness import gobuild, processes
from tests.harness.cluster import Cluster
from tests.harness.controlplane import APISERVER, CONTROLLER_MANAGER
from tests.harness.gobuild import ToolSet
from tests.harness.install import (
    EXAMPLE_IMAGES,
    OPERATOR_USER,
    RELEASE,
    ROOT,
    SYSTEM_NAMESPACE,
    eventually,
)

OPERATOR = OPERATOR_USER
"""The operator's user name: that of the ServiceAccount, from a certificate."""
_ROLES = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
_POLICIES = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
_POLICY_SECONDS = 60.0
_CONTROLLERS = "--controllers=-endpointslice-controller,-endpoints-controller"
"""Disabled controllers: fake pods have loopback addresses, which EndpointSlices reject."""
_AUTOSCALING = "--horizontal-pod-autoscaler-sync-period=1s"
"""Interval at which a HorizontalPodAutoscaler looks at its metric; Kubernetes' default is 15 s."""


@dataclass(frozen=True)
class Release:
    """A release of Kubernetes, and how to switch its own gang scheduling on."""

    kubernetes: ToolSet
    gates: str
    """Feature gates of the API server, the controllers and the scheduler."""
    api: str
    """API version of the group objects."""

    @property
    def gate_argument(self) -> str:
        """Argument of each of these processes."""
        return f"--feature-gates={self.gates}"


TESTED = Release(
    gobuild.KUBERNETES,
    "GenericWorkload=true,GangScheduling=true",
    "scheduling.k8s.io/v1alpha1",
)
"""Kubernetes 1.35, with which all tests run."""
NEWEST = Release(gobuild.KUBERNETES_NEWEST, "GenericWorkload=true", "scheduling.k8s.io/v1beta1")


@dataclass(frozen=True)
class ControlPlane:
    """A control plane with the CRD. The operator's user has the chart's permissions."""

    cluster: Cluster
    operator_kubeconfig: Path
    """Kubeconfig of the operator's user."""

    @classmethod
    def up(
        cls, release: Release = TESTED, gangs: Sequence[str] = ("gangs.types={Native,Kueue}",)
    ) -> "ControlPlane":
        """Start the control plane. Stop it with `cluster.down()`.

        Args:
            release: Release of Kubernetes.
            gangs: Values of the chart about gangs.
        """
        serving = [release.gate_argument, f"--runtime-config={release.api}=true"]
        controllers = [_CONTROLLERS, _AUTOSCALING, release.gate_argument]
        extra = {CONTROLLER_MANAGER: controllers, APISERVER: serving}
        cluster = Cluster.up(0, extra_args=extra, kubernetes=release.kubernetes)
        try:
            _install(cluster, gangs)
        except BaseException:
            cluster.down()
            raise
        return cls(cluster, cluster.kubeconfig_for(OPERATOR))

    def wait_until_limited(self) -> None:
        """Wait until the API server enforces the operator's admission policy.

        The API server reads new policies some seconds after its start, and refuses nothing until
        then.
        """
        eventually(self.is_limited, "the API server enforces the policy", _POLICY_SECONDS)

    def is_limited(self) -> bool:
        """Return whether the operator's admission policy refuses a pod of no job."""
        metadata = {"name": "of-no-job", "namespace": "default"}
        spec = {"containers": [{"name": "c", "image": "none"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        words = ("--as", OPERATOR, "create", "--dry-run=server", "-f", "-")
        refused = self.cluster.kubectl(*words, input=json.dumps(pod), check=False)
        return "that a DDPJob owns" in refused.stderr

    def audit(self, namespace: str | None = None, user: str = OPERATOR) -> list[dict[str, Any]]:
        """Return the requests of a user in one namespace or in all, in their order."""
        with self.cluster.audit_log.open(encoding="utf-8") as lines:
            # Parsing is slow, and most lines are about other users.
            found = [json.loads(line) for line in lines if f'"{user}"' in line]
        mine = [entry for entry in found if entry["user"]["username"] == user]
        if namespace is None:
            return mine
        return [e for e in mine if e.get("objectRef", {}).get("namespace") == namespace]


def _install(cluster: Cluster, gangs: Sequence[str]) -> None:
    """Install the CRD as a user does, and the chart's roles and admission policies.

    Tests of pods that other parts of the API server refuse need the podTemplate policy `full`.
    """
    cluster.kubectl("apply", "-f", str(ROOT / "manifests" / "crd" / "ddpjobs.yaml"))
    cluster.wait_for_crds("ddpjobs.ddp-trainer.dev")
    # The API server serves a new kind only some time after the CRD is Established.
    eventually(lambda: cluster.kubectl("get", "ddpjobs", check=False).returncode == 0, "DDPJobs")
    # The garbage collector discovers new kinds every 30 s and when it starts.
    processes.stop(CONTROLLER_MANAGER, signal.SIGTERM)
    processes.recorded(CONTROLLER_MANAGER).start()
    cluster.kubectl("create", "namespace", SYSTEM_NAMESPACE)
    account = ("-n", SYSTEM_NAMESPACE, "get", "serviceaccount", "default")
    processes.wait_for(
        "the service account of a new namespace",
        lambda: cluster.kubectl(*account, check=False).returncode == 0,
        deadline_s=60.0,
        needs=(CONTROLLER_MANAGER,),
    )
    chart = cluster.helm(
        "template",
        RELEASE,
        str(ROOT / "charts"),
        "-n",
        SYSTEM_NAMESPACE,
        "--no-hooks",
        *EXAMPLE_IMAGES,
        "--set",
        "podTemplate=full",
        *(word for value in gangs for word in ("--set", value)),
    ).stdout
    limits = [d for d in yaml.safe_load_all(chart) if d and d["kind"] in _ROLES | _POLICIES]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(limits))
