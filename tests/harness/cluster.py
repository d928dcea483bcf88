"""The cluster as tests use it: start, attach, run commands, stop."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.harness import binaries, clients, gobuild, kubeconfig, machine, network, paths, processes
from tests.harness import node as node_module
from tests.harness.api import Api
from tests.harness.binaries import Tools
from tests.harness.controlplane import (
    APISERVER,
    CONTROLLER_MANAGER,
    ControlPlane,
    wait_for_apiserver,
)
from tests.harness.errors import HarnessError
from tests.harness.gobuild import ToolSet
from tests.harness.locks import FileLock
from tests.harness.node import Node
from tests.harness.pki import Authority
from tests.harness.run import Figures

_STATE_FILE: Final = paths.STATE / "cluster.json"
_NODE_LIMIT_S: Final = 60.0
_LOCK_WAIT_S: Final = 5.0
_ESTABLISHED_LIMIT_S: Final = 60.0
_lock: Final = FileLock(paths.LOCK)


@dataclass(frozen=True)
class Cluster:
    """The running cluster of this machine. There is at most one.

    The process that holds this object prevents others from stopping the cluster.

    Attributes:
        nodes: Its nodes; empty for a control plane alone.
        figures: Seconds of each phase of the start.
    """

    nodes: tuple[Node, ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    state_dir: Path = paths.STATE
    kubeconfig: Path = paths.STATE / "kubeconfig.yaml"
    audit_log: Path = paths.STATE / "logs" / "audit.log"
    shared_dir: Path = paths.STATE / "shared"
    ca_file: Path = paths.STATE / "pki" / "ca.crt"
    api_url: str = paths.API_URL

    @classmethod
    def up(
        cls,
        nodes: int = 2,
        *,
        extra_args: Mapping[str, Sequence[str]] | None = None,
        kubernetes: ToolSet = gobuild.KUBERNETES,
        quiet: bool = False,
    ) -> Cluster:
        """Remove what an earlier run left, then start a new cluster.

        Args:
            nodes: Number of real nodes. 0 gives a control plane without a scheduler and without
                node controllers, so that a test can play the kubelet.
            extra_args: Further arguments by process name, for example
                `{"kube-apiserver": ["--event-ttl=1m"]}`; they override the harness's own.
            kubernetes: Release of the control plane. A cluster with real nodes has the default.
            quiet: Whether to print no durations.

        Raises:
            HarnessError: This machine cannot run it, another process uses the running cluster, or a
                part does not start (the last lines of its log are in the text).
        """
        machine.check()
        if not 0 <= nodes <= paths.MAX_NODES:
            raise HarnessError(f"A cluster has 0 to {paths.MAX_NODES} nodes, got {nodes}.")
        figures = Figures(quiet=quiet)
        if nodes:
            tools = binaries.for_nodes(figures)
        else:
            tools = binaries.for_control_plane(figures, kubernetes)
        _lock_alone()
        try:
            cluster = _bring_up(nodes, tools, extra_args or {}, figures)
        except BaseException:
            machine.clean()
            _lock.release()
            raise
        _lock.shared()
        return cluster

    @classmethod
    def attach(cls) -> Cluster | None:
        """Return the cluster that runs on this machine, or None if there is none.

        A cluster that another process is starting or stopping counts as none.
        """
        try:
            document: dict[str, Any] = json.loads(_STATE_FILE.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        if not processes.alive("etcd") or not _lock.shared():
            return None
        ctr = document["ctr"]
        nodes = tuple(Node(number + 1, ctr) for number in range(document["nodes"]))
        return cls(nodes=nodes, figures=document["figures"])

    @staticmethod
    def clean() -> None:
        """Stop and remove any cluster on this machine, whole or crashed.

        Raises:
            HarnessError: Another process uses the cluster, or a process does not end.
        """
        machine.check()
        _lock_alone()
        try:
            machine.clean()
        finally:
            _lock.release()

    def down(self) -> None:
        """Stop and remove the cluster. Its logs remain until the next one.

        Raises:
            HarnessError: Another process uses the cluster, or a process does not end.
        """
        self.clean()

    @property
    def node_names(self) -> list[str]:
        """Names of the nodes."""
        return [node.name for node in self.nodes]

    @property
    def pod_cidrs(self) -> dict[str, str]:
        """Address range of each node's pods, by the node's name."""
        return {node.name: paths.pod_cidr(node.number) for node in self.nodes}

    def node(self, name: str) -> Node:
        """Return the node of this name.

        Raises:
            HarnessError: There is no such node.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise HarnessError(f"The cluster has no node {name}.")

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002  # as subprocess.run calls it
        check: bool = True,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator.

        Args:
            args: Its arguments.
            input: Text for its standard input.
            check: Whether a failure raises.
            timeout: Seconds after which it is killed.

        Raises:
            HarnessError: It failed (with `check`), or ran too long.
        """
        return clients.run(binaries.kubectl(), args, stdin=input, check=check, timeout_s=timeout)

    def wait_for_crds(self, *names: str) -> None:
        """Wait until the API server has established these CustomResourceDefinitions.

        `kubectl wait` fails at once on a CRD that was just created and has no conditions yet.

        Raises:
            HarnessError: A definition was not established within a minute.
        """
        for name in names:
            processes.wait_for(
                f"the CRD {name}",
                partial(self._is_established, name),
                deadline_s=_ESTABLISHED_LIMIT_S,
                needs=(APISERVER,),
            )

    def _is_established(self, crd: str) -> bool:
        # The time limit of kubectl is that of all its objects together.
        wait = ("wait", "--for=condition=Established", "--timeout=1s", f"crd/{crd}")
        return self.kubectl(*wait, check=False).returncode == 0

    def helm(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002  # as subprocess.run calls it
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run helm as administrator; arguments and errors as for `kubectl`."""
        return clients.run(binaries.helm(), args, stdin=input, check=check, timeout_s=timeout)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Return a kubeconfig with a certificate for this user, who appears in the audit log.

        Args:
            user: The user's name.
            groups: The user's groups.
        """
        name = "user-" + quote(user, safe="")
        authority = _authority()
        pair = authority.issue(name, user, groups)
        return kubeconfig.write(paths.STATE / "kubeconfigs" / f"{name}.yaml", authority, pair)

    def load_image(self, archive: Path) -> None:
        """Import an image archive into all nodes.

        Raises:
            HarnessError: There is no such archive or node, or an import failed.
        """
        node_module.load_image(list(self.nodes), archive)

    def apiserver_stop(self) -> None:
        """Stop the API server with SIGTERM; all other processes continue."""
        processes.stop(APISERVER, signal.SIGTERM)

    def apiserver_start(self) -> None:
        """Start the API server again, wait until it is ready, and restart the controllers.

        After a long outage the controllers' clients would retry only every 30 to 60 s.

        Raises:
            HarnessError: The API server ended or took too long.
        """
        processes.recorded(APISERVER).start()
        authority = _authority()
        wait_for_apiserver(Api(authority, authority.files("admin")))
        processes.stop(CONTROLLER_MANAGER, signal.SIGTERM)
        processes.recorded(CONTROLLER_MANAGER).start()


def _bring_up(
    count: int, tools: Tools, extra: Mapping[str, Sequence[str]], figures: Figures
) -> Cluster:
    with figures.phase("clean up"):
        machine.clean()
        machine.remove_logs()
    start = time.monotonic()
    _make_state()
    machine.prepare()
    network.create(max(count, 1))
    authority = Authority.create(paths.STATE / "pki")
    plane = ControlPlane(tools, authority, count, extra)
    plane.start_store_and_server()
    nodes = _make_nodes(count, tools, authority, figures)
    plane.start_controllers(figures)
    with figures.phase("nodes and services ready"):
        # One after another, because all kubelets clear the same /var/lib/kubelet/device-plugins.
        for node in nodes:
            node.start_kubelet_with(tools, extra.get("kubelet", ()))
            _wait_for_node(plane.api, node)
        plane.wait()
    figures.note("up", time.monotonic() - start)
    cluster = Cluster(nodes=nodes, figures=figures.seconds)
    _remember(cluster, tools.binary("ctr"))
    return cluster


def _make_state() -> None:
    paths.STATE.mkdir(mode=0o700, exist_ok=True)
    (paths.STATE / "logs").mkdir(exist_ok=True)
    shared = paths.STATE / "shared"
    shared.mkdir()
    shared.chmod(0o1777)


def _make_nodes(
    count: int, tools: Tools, authority: Authority, figures: Figures
) -> tuple[Node, ...]:
    nodes = tuple(Node(number + 1, tools.binary("ctr")) for number in range(count))
    if nodes:
        with figures.phase("container runtimes ready"):
            sandbox = binaries.sandbox_image(figures)
            for node in nodes:
                node.prepare(tools, authority)
            for node in nodes:
                node.wait_for_runtime()
            node_module.load_image(list(nodes), sandbox)
    return nodes


def _wait_for_node(api: Api, node: Node) -> None:
    def ready() -> bool:
        document = api.get(f"/api/v1/nodes/{node.name}") or {}
        conditions = document.get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    processes.wait_for(
        f"the node {node.name}",
        ready,
        deadline_s=_NODE_LIMIT_S,
        needs=(node.kubelet_process, node.containerd_process),
    )


def _remember(cluster: Cluster, ctr: str) -> None:
    document = {"nodes": len(cluster.nodes), "ctr": ctr, "figures": dict(cluster.figures)}
    fresh = _STATE_FILE.with_suffix(".part")
    fresh.write_text(json.dumps(document), encoding="utf-8")
    fresh.rename(_STATE_FILE)


def _authority() -> Authority:
    return Authority(paths.STATE / "pki")


def _lock_alone() -> None:
    if not _lock.exclusive(_LOCK_WAIT_S):
        raise HarnessError(
            f"Another process uses the cluster of this machine ({_lock.holder()}); "
            "only one process at a time can start or stop it."
        )
