"""Gang schedulers beside the cluster's own scheduler: Volcano and scheduler-plugins.

Each one runs as the administrator with the manifests of its release: the CRDs, and the
configuration of its Helm chart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness import gobuild, kubeconfig, paths
from tests.harness.cluster import Cluster
from tests.harness.gobuild import ToolSet
from tests.harness.pki import Authority
from tests.harness.processes import Service
from tests.harness.run import Figures

VOLCANO: Final = "volcano"
"""Scheduler name of Volcano, and the name of its process."""
COSCHEDULING: Final = "scheduler-plugins-scheduler"
"""Scheduler name of scheduler-plugins in its Helm chart, and the name of its process."""
_VOLCANO_CRDS: Final = ("config/crd/volcano/bases", "config/crd/jobflow/bases")
_VOLCANO_CONFIG: Final = "installer/helm/chart/volcano/config/volcano-scheduler.conf"
_COSCHEDULING_CRDS: Final = (
    "manifests/coscheduling/crd.yaml",
    "manifests/capacityscheduling/crd.yaml",
)


def start_volcano(cluster: Cluster) -> None:
    """Install Volcano's CRDs, and start its scheduler and its controllers.

    Its admission webhooks are left out. They only check and complete Volcano's own jobs, queues and
    pods without a group.

    Raises:
        HarnessError: A tool could not be built, or a CRD was not established in time.
    """
    folder, source = _built(gobuild.VOLCANO)
    _install_crds(cluster, *(source / crds for crds in _VOLCANO_CRDS))
    access = _access(VOLCANO)
    common = (f"--kubeconfig={access}", "--leader-elect=false", "--v=3")
    configured = f"--scheduler-conf={source / _VOLCANO_CONFIG}"
    dumps = "--cache-dumper=false"
    _start(VOLCANO, folder, "scheduler", *common, configured, dumps)
    _start("volcano-controllers", folder, "controller-manager", *common)


def start_coscheduling(cluster: Cluster) -> None:
    """Install the CRD of scheduler-plugins, and start its scheduler and its controllers.

    Raises:
        HarnessError: A tool could not be built, or a CRD was not established in time.
    """
    folder, source = _built(gobuild.SCHEDULER_PLUGINS)
    _install_crds(cluster, *(source / crds for crds in _COSCHEDULING_CRDS))
    access = _access(COSCHEDULING)
    config = paths.STATE / "config" / f"{COSCHEDULING}.yaml"
    config.write_text(yaml.safe_dump(_coscheduling_config(access)), encoding="utf-8")
    arguments = (
        f"--config={config}",
        f"--authentication-kubeconfig={access}",
        f"--authorization-kubeconfig={access}",
        "--authentication-skip-lookup=true",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        # Else a gang whose last try failed within a deletion waits five minutes for the next one.
        "--pod-max-in-unschedulable-pods-duration=5s",
    )
    _start(COSCHEDULING, folder, "scheduler", *arguments)
    quiet = ("--metricsAddr=0", "--probeAddr=0")
    _start("coscheduling-controllers", folder, "controller", f"--kubeconfig={access}", *quiet)


def _coscheduling_config(access: Path) -> dict[str, Any]:
    """Return the configuration of the Helm chart, with the plugin for gangs alone."""
    plugin = {"name": "Coscheduling"}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(access), "qps": 1000, "burst": 2000},
        "profiles": [
            {
                "schedulerName": COSCHEDULING,
                "plugins": {
                    "multiPoint": {"enabled": [plugin], "disabled": [{"name": "PrioritySort"}]}
                },
                "pluginConfig": [{**plugin, "args": {"permitWaitingTimeSeconds": 10}}],
            }
        ],
    }


def _built(tool_set: ToolSet) -> tuple[Path, Path]:
    """Return the folders of the binaries and of the module's source."""
    return gobuild.build(tool_set, Figures()), gobuild.source(tool_set)


def _install_crds(cluster: Cluster, *sources: Path) -> None:
    """Install the CRDs in files, or in all files of folders."""
    files = [file for one in sources for file in (one.glob("*.yaml") if one.is_dir() else [one])]
    for file in files:
        cluster.kubectl("apply", "--server-side", "-f", str(file))
    documents = [one for file in files for one in yaml.safe_load_all(file.read_text("utf-8"))]
    kind = "CustomResourceDefinition"
    cluster.wait_for_crds(*(d["metadata"]["name"] for d in documents if d and d["kind"] == kind))


def _access(name: str) -> Path:
    """Write a kubeconfig of the administrator for a scheduler; return its path."""
    authority = Authority(paths.STATE / "pki")
    pair = authority.issue(name, name, ["system:masters"])
    return kubeconfig.write(paths.STATE / "kubeconfigs" / f"{name}.yaml", authority, pair)


def _start(name: str, folder: Path, binary: str, *arguments: str) -> None:
    argv = (str(folder / binary), *arguments)
    Service(name=name, argv=argv, search_path=str(folder)).start()
