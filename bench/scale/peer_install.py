"""Build the peer operators from their Go modules, and install their CRDs and webhooks."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.scale import peer_manifests as manifests
from bench.scale.peer_process import Manager, Ports, restart_controller_manager
from tests.harness import gobuild
from tests.harness.cluster import Cluster
from tests.harness.ports import free_port
from tests.harness.run import Figures

_Change = dict[str, Any]
TRAINING_OPERATOR, TRAINER, JOBSET = "training-operator", "trainer", "jobset"
"""Names of the peer operators' users in the audit log."""
_QPS, _BURST, _WORKERS = 1000, 2000, 16
"""Client limits and number of workers of a tuned peer."""
_CONFIG_ARGUMENT = "--config=/tmp/config.yaml"
_NO_ELECTION: _Change = {"leaderElection": {"leaderElect": False}}
_CONNECTION: _Change = {"clientConnection": {"qps": _QPS, "burst": _BURST}}
_CRD = "CustomResourceDefinition"


@dataclass(frozen=True)
class _Peer:
    """Location of a peer operator's manifests, and the names that its manager expects.

    Attributes:
        tool_set: The pinned module.
        program: Name of the binary.
        namespace: Namespace of the shipped manifests.
        service: Service of its webhooks.
        secret: Secret of its webhook certificate.
        kustomizations: Folders in the module whose CRDs and webhooks are installed.
        config: Shipped configuration file in the module, or empty.
    """

    tool_set: gobuild.ToolSet
    program: str
    namespace: str
    service: str
    secret: str
    kustomizations: tuple[str, ...]
    config: str = ""


_PEERS: Mapping[str, _Peer] = {
    TRAINING_OPERATOR: _Peer(
        tool_set=gobuild.TRAINING_OPERATOR,
        program="training-operator.v1",
        namespace="kubeflow",
        service="training-operator",
        secret="training-operator-webhook-cert",  # noqa: S106 (a name)
        kustomizations=("manifests/overlays/standalone",),
    ),
    JOBSET: _Peer(
        tool_set=gobuild.JOBSET,
        program="jobset",
        namespace="jobset-system",
        service="jobset-webhook-service",
        secret="jobset-webhook-server-cert",  # noqa: S106 (a name)
        kustomizations=("config/default",),
        config="config/components/manager/controller_manager_config.yaml",
    ),
    # The overlay of Trainer includes JobSet from the network, so its bases are installed.
    TRAINER: _Peer(
        tool_set=gobuild.TRAINER,
        program="trainer-controller-manager",
        namespace="kubeflow-system",
        service="kubeflow-trainer-controller-manager",
        secret="kubeflow-trainer-webhook-cert",  # noqa: S106 (a name)
        kustomizations=("manifests/base/crds", "manifests/base/webhook"),
        config="manifests/base/manager/controller_manager_config.yaml",
    ),
}


@dataclass(frozen=True)
class Peers:
    """The installed peer operators.

    Attributes:
        folder: Folder for logs.
        programs: Paths of the binaries, by user.
        kubeconfigs: Kubeconfigs by user.
        ports: Ports by user.
        configs: Texts of the shipped configuration files, by user.
    """

    folder: Path
    programs: Mapping[str, Path]
    kubeconfigs: Mapping[str, Path]
    ports: Mapping[str, Ports]
    configs: Mapping[str, str]

    @classmethod
    def install(cls, cluster: Cluster, folder: Path) -> "Peers":
        """Build the peer operators unless the cache has them. Install their CRDs and webhooks."""
        programs, kubeconfigs, ports, configs = {}, {}, {}, {}
        for user, peer in _PEERS.items():
            programs[user] = gobuild.build(peer.tool_set, Figures()) / peer.program
            source = gobuild.source(peer.tool_set)
            first = free_port(4)
            ports[user] = Ports(first, first + 1, first + 2, first + 3)
            if peer.config:
                configs[user] = (source / peer.config).read_text(encoding="utf-8")
            _install(cluster, peer, source, ports[user].webhook)
            kubeconfigs[user] = cluster.kubeconfig_for(user)
            grant = ("clusterrolebinding", user, "--clusterrole=cluster-admin", f"--user={user}")
            cluster.kubectl("create", *grant)
        restart_controller_manager()
        return cls(folder, programs, kubeconfigs, ports, configs)

    def training_operator(self, *, tuned: bool) -> Manager:
        """Return the manager of PyTorchJobs."""
        ports = self.ports[TRAINING_OPERATOR]
        arguments = [
            f"--metrics-bind-address=127.0.0.1:{ports.metrics}",
            f"--health-probe-bind-address=127.0.0.1:{ports.health}",
            f"--webhook-server-port={ports.webhook}",
        ]
        if tuned:
            arguments += [f"--kube-api-qps={_QPS}", f"--kube-api-burst={_BURST}"]
            arguments += [f"--controller-threads={_WORKERS}"]
        return self._manager(TRAINING_OPERATOR, arguments)

    def jobset(self, *, tuned: bool) -> Manager:
        """Return the manager of JobSets."""
        ports = self.ports[JOBSET]
        places: _Change = {
            "webhook": {"port": ports.webhook},
            "metrics": {"bindAddress": f"127.0.0.1:{ports.metrics}"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{ports.health}"},
        }
        changes = [_NO_ELECTION, places, *([_CONNECTION] if tuned else [])]
        arguments = [_CONFIG_ARGUMENT, "--zap-log-level=2"]
        return self._manager(JOBSET, arguments, changes)

    def trainer(self, *, tuned: bool) -> Manager:
        """Return the manager of TrainJobs."""
        ports = self.ports[TRAINER]
        places: _Change = {
            "webhook": {"port": ports.webhook},
            "metrics": {"bindAddress": f"127.0.0.1:{ports.metrics}"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{ports.health}"},
            "statusServer": {"port": ports.status},
        }
        workers: _Change = {"groupKindConcurrency": {"TrainJob.trainer.kubeflow.org": _WORKERS}}
        faster: list[_Change] = [_CONNECTION, {"controller": workers}]
        changes = [_NO_ELECTION, places, *(faster if tuned else [])]
        return self._manager(TRAINER, [_CONFIG_ARGUMENT], changes)

    @staticmethod
    def controller_manager(*, tuned: bool) -> tuple[str, ...]:
        """Return the arguments of the controller manager for TrainJobs.

        The harness raises the client limits, so the shipped variant names the defaults.
        """
        qps, burst, workers = (_QPS, _BURST, _WORKERS) if tuned else (20, 30, 5)
        return (
            f"--kube-api-qps={qps}",
            f"--kube-api-burst={burst}",
            f"--concurrent-job-syncs={workers}",
        )

    def _manager(
        self, user: str, arguments: list[str], changes: list[_Change] | None = None
    ) -> Manager:
        peer = _PEERS[user]
        config = manifests.configuration(self.configs[user], *changes) if changes else ""
        return Manager(
            user=user,
            program=self.programs[user],
            namespace=peer.namespace,
            secret=peer.secret,
            ports=self.ports[user],
            arguments=tuple(arguments),
            config=config,
        )


def _install(cluster: Cluster, peer: _Peer, source: Path, port: int) -> None:
    """Install the CRDs and webhooks of a peer operator from its module."""
    texts = [cluster.kubectl("kustomize", str(source / f)).stdout for f in peer.kustomizations]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    cluster.kubectl("create", "namespace", peer.namespace)
    wanted = [
        *manifests.to_install(documents, peer.namespace, port),
        manifests.webhook_service(peer.namespace, peer.service),
        manifests.webhook_secret(peer.namespace, peer.secret),
    ]
    text = yaml.safe_dump_all(wanted)
    cluster.kubectl("apply", "--server-side", "-f", "-", input=text)
    cluster.wait_for_crds(*(one["metadata"]["name"] for one in wanted if one["kind"] == _CRD))
