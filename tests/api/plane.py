"""A control plane with the product's CRD, and a user with exactly the operator's rights."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.harness import processes
from tests.harness.cluster import Cluster
from tests.tools.install import RELEASE, ROOT, SYSTEM_NAMESPACE, eventually

OPERATOR = "ddp-operator"
"""The operator's name in the audit log."""
_GRANTS = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
_CONTROLLER_MANAGER = "kube-controller-manager"
_CONTROLLERS = "--controllers=-endpointslice-controller,-endpoints-controller"
"""Their addresses are the loopback's, which no EndpointSlice may hold."""


@dataclass(frozen=True)
class Plane:
    """A control plane with the CRD; its user `ddp-operator` may do what the chart allows."""

    cluster: Cluster
    operator: Path
    """Kubeconfig of that user."""

    @classmethod
    def up(cls) -> "Plane":
        """Bring it up; end it with `cluster.down()`."""
        cluster = Cluster.up(0, extra_args={_CONTROLLER_MANAGER: [_CONTROLLERS]})
        try:
            _install(cluster)
        except BaseException:
            cluster.down()
            raise
        return cls(cluster, cluster.kubeconfig_for(OPERATOR))

    def audit(self, namespace: str | None = None, user: str = OPERATOR) -> list[dict[str, Any]]:
        """Requests of a user, of one namespace or of all, in their order."""
        with self.cluster.audit_log.open(encoding="utf-8") as lines:
            # Most lines are other users' or namespaces': they are not worth parsing.
            found = [json.loads(line) for line in lines if f'"{user}"' in line]
        mine = [entry for entry in found if entry["user"]["username"] == user]
        if namespace is None:
            return mine
        return [e for e in mine if e.get("objectRef", {}).get("namespace") == namespace]


def _install(cluster: Cluster) -> None:
    """The CRD as a person applies it, and the chart's rights for a user in place of its account."""
    cluster.kubectl("apply", "-f", str(ROOT / "manifests" / "crd" / "ddpjobs.yaml"))
    cluster.kubectl("wait", "--for=condition=Established", "crd/ddpjobs.ddp-trainer.dev")
    # It serves the new kind a moment after it has taken it in.
    eventually(lambda: cluster.kubectl("get", "ddpjobs", check=False).returncode == 0, "DDPJobs")
    # The garbage collector looks for new kinds only every 30 s, and when it starts.
    processes.stop(_CONTROLLER_MANAGER, signal.SIGTERM)
    processes.recorded(_CONTROLLER_MANAGER).start()
    cluster.kubectl("create", "namespace", SYSTEM_NAMESPACE)
    chart = cluster.helm("template", RELEASE, str(ROOT / "charts"), "-n", SYSTEM_NAMESPACE).stdout
    grants = [d for d in yaml.safe_load_all(chart) if d and d["kind"] in _GRANTS]
    for grant in grants:
        if "subjects" in grant:
            group = "rbac.authorization.k8s.io"
            grant["subjects"] = [{"apiGroup": group, "kind": "User", "name": OPERATOR}]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(grants))
