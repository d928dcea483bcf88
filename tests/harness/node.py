"""One node of the cluster: its container runtime, its kubelet, and ways to make the node fail."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.harness import cgroups, kubeconfig, node_config, paths, processes
from tests.harness.binaries import Tools
from tests.harness.errors import HarnessError
from tests.harness.pki import Authority
from tests.harness.processes import Service
from tests.harness.run import command

_START_LIMIT_S: Final = 60.0
_MANAGED: Final = "io.cri-containerd.image=managed"


@dataclass(frozen=True)
class Node:
    """A node of the cluster.

    Attributes:
        number: Counted from 1.
        ctr: The path of containerd's command-line client.
    """

    number: int
    ctr: str

    @property
    def name(self) -> str:
        """Name under which the node registers."""
        return paths.node_name(self.number)

    @property
    def zone(self) -> str:
        """Zone label of the node; each node has its own zone."""
        return f"zone-{self.number}"

    @property
    def address(self) -> str:
        """The node's address on the bridge."""
        return paths.node_address(self.number)

    @property
    def folder(self) -> Path:
        """The node's folder in the state."""
        return paths.STATE / "nodes" / self.name

    @property
    def kubelet_process(self) -> str:
        """Name of the node's kubelet among the recorded processes."""
        return f"kubelet-{self.name}"

    @property
    def containerd_process(self) -> str:
        """Name of the node's container runtime among the recorded processes."""
        return f"containerd-{self.name}"

    def prepare(self, tools: Tools, authority: Authority) -> None:
        """Write the configuration, and start the container runtime."""
        (self.folder / "cni").mkdir(parents=True)
        self._write("containerd.toml", node_config.containerd(self.folder, tools.binary("runc")))
        self._write("cni/10-pods.conflist", node_config.cni(self.number, self.folder))
        group = cgroups.create(self.name)
        self._write("kubelet.yaml", node_config.kubelet(self.number, self.folder, group))
        names = [self.name, self.address]
        pair = authority.issue(self.name, f"system:node:{self.name}", ["system:nodes"], names)
        kubeconfig.write(self.folder / "kubeconfig.yaml", authority, pair)
        Service(
            name=self.containerd_process,
            argv=(tools.binary("containerd"), f"--config={self.folder / 'containerd.toml'}"),
            search_path=tools.search_path,
            cgroup=f"runtime-{self.name}",
        ).start()

    def start_kubelet_with(self, tools: Tools, extra: Sequence[str]) -> None:
        """Start the kubelet for the first time, with further arguments."""
        Service(
            name=self.kubelet_process,
            argv=(
                tools.binary("kubelet"),
                f"--config={self.folder / 'kubelet.yaml'}",
                f"--node-labels=topology.kubernetes.io/zone={self.zone}",
                f"--kubeconfig={self.folder / 'kubeconfig.yaml'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                f"--root-dir={self.folder / 'kubelet'}",
                f"--cert-dir={self.folder / 'kubelet-pki'}",
                *extra,
            ),
            search_path=tools.search_path,
        ).start()

    def wait_for_runtime(self) -> None:
        """Wait until the container runtime takes connections.

        Raises:
            HarnessError: The container runtime ended or took too long.
        """
        processes.wait_for(
            f"the container runtime of {self.name}",
            lambda: _listens(self.folder / "containerd.sock"),
            deadline_s=_START_LIMIT_S,
            needs=(self.containerd_process,),
        )

    def kill_kubelet(self) -> None:
        """Kill the kubelet with SIGKILL. Its containers continue; the node becomes NotReady."""
        processes.stop(self.kubelet_process, signal.SIGKILL)

    def start_kubelet(self) -> None:
        """Start the kubelet again after `kill_kubelet`."""
        processes.recorded(self.kubelet_process).start()

    def kill_containers(self) -> None:
        """Kill every process of every pod on the node with SIGKILL.

        A living kubelet restarts them. Kill it first to simulate the loss of a node.
        """
        cgroups.kill(self.name)

    def cut_off(self) -> None:
        """Disconnect every pod on the node from the network.

        From then on nothing from the pods arrives, not even the end of a connection. Killed
        processes would close their connections; a lost node does not.
        """
        namespaces: dict[int, int] = {}
        for pid in cgroups.members(self.name):
            with suppress(FileNotFoundError):  # the process ended at the same time
                namespaces[Path(f"/proc/{pid}/ns/net").stat().st_ino] = pid
        for pid in namespaces.values():
            link = ("ip", "link", "set", "eth0", "down")
            command(["nsenter", f"--net=/proc/{pid}/ns/net", *link], f"Cutting {self.name} off")

    def load_image(self, archive: Path) -> None:
        """Import an image archive, and wait until the kubelet can use its images.

        Raises:
            HarnessError: The import failed.
        """
        self._ctr("images", "import", archive)
        processes.wait_for(
            f"the images of {archive.name} on {self.name}",
            self._all_managed,
            deadline_s=_START_LIMIT_S,
            needs=(self.containerd_process,),
        )

    def _all_managed(self) -> bool:
        lines = self._ctr("images", "list").splitlines()[1:]
        return all(_MANAGED in line for line in lines)

    def _ctr(self, *arguments: str | Path) -> str:
        argv: list[str | Path] = [
            self.ctr,
            "--address",
            self.folder / "containerd.sock",
            "--namespace",
            "k8s.io",
        ]
        return command([*argv, *arguments], f"ctr {arguments[0]} on {self.name}")

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")


def load_image(nodes: list[Node], archive: Path) -> None:
    """Import an image archive into all nodes concurrently.

    Raises:
        HarnessError: There is no such archive, or an import failed.
    """
    if not archive.is_file():
        raise HarnessError(f"The image archive {archive} does not exist.")
    if not nodes:
        raise HarnessError("The cluster must have nodes to load an image, but it has none.")
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node: node.load_image(archive), nodes))


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
