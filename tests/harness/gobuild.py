"""Build the Go tools from pinned modules, once per content of the pins."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.harness import paths
from tests.harness.errors import HarnessError
from tests.harness.locks import building
from tests.harness.run import Figures, command, print_line

_BUILD_LIMIT_S = 3600


@dataclass(frozen=True)
class ToolSet:
    """Tools built from one of the modules below `tools/`, which pins all their dependencies.

    Attributes:
        name: The folder of the module below `tools/`.
        module: The module that contains the tools.
        packages: The commands' packages; each binary has the name of the last element.
        tags: Build tags.
        stamps: Linker variables; `{version}`, `{major}`, `{minor}` are filled in.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    tags: str = ""
    stamps: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Folder with the module's go.mod and go.sum."""
        return paths.TOOLS_MODULES / self.name

    @property
    def version(self) -> str:
        """Pinned version of the tools, with its `v`."""
        text = (self.folder / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"^require {re.escape(self.module)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise HarnessError(f"{self.folder / 'go.mod'} does not require {self.module}.")
        return found.group(1)

    @property
    def flags(self) -> list[str]:
        """Flags of `go build`, which are part of the cache key."""
        major, minor = self.version.removeprefix("v").split(".")[:2]
        stamps = [
            "-X " + stamp.format(version=self.version, major=major, minor=minor)
            for stamp in self.stamps
        ]
        flags = ["-trimpath", "-buildvcs=false", "-mod=readonly"]
        return [*flags, f"-tags={self.tags}", "-ldflags=" + " ".join(["-s -w", *stamps])]

    @property
    def cached(self) -> Path:
        """Folder of the built binaries in the cache; it may not exist yet."""
        digest = hashlib.sha256()
        for name in ("go.mod", "go.sum"):
            digest.update((self.folder / name).read_bytes())
        digest.update("\0".join([*self.flags, *self.packages]).encode())
        return paths.cache() / "tools" / f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"


def _version_stamps(package: str) -> tuple[str, ...]:
    return (
        f"{package}.gitVersion={{version}}",
        f"{package}.gitMajor={{major}}",
        f"{package}.gitMinor={{minor}}",
        f"{package}.gitTreeState=clean",
    )


def _kubernetes(name: str, *commands: str) -> ToolSet:
    """Return commands of the Kubernetes release that a module pins."""
    return ToolSet(
        name=name,
        module="k8s.io/kubernetes",
        packages=tuple(f"k8s.io/kubernetes/cmd/{command}" for command in commands),
        tags="selinux,notest,grpcnotrace",
        stamps=(
            *_version_stamps("k8s.io/component-base/version"),
            *_version_stamps("k8s.io/client-go/pkg/version"),
        ),
    )


_CONTROL = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
KUBERNETES = _kubernetes("kubernetes", *_CONTROL, "kubelet", "kube-proxy")
KUBERNETES_NEWEST = _kubernetes("kubernetes-newest", *_CONTROL)
"""Control plane of the newest Kubernetes release, without the processes of nodes."""
HELM = ToolSet(
    name="helm",
    module="helm.sh/helm/v3",
    packages=("helm.sh/helm/v3/cmd/helm",),
    stamps=(  # helm's version, and the Kubernetes version for charts rendered without a cluster
        "helm.sh/helm/v3/internal/version.version={version}",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=35",
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1",
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=35",
    ),
)
COREDNS = ToolSet(
    name="coredns",
    module="github.com/coredns/coredns",
    packages=("github.com/coredns/coredns",),
)
KWOK = ToolSet(name="kwok", module="sigs.k8s.io/kwok", packages=("sigs.k8s.io/kwok/cmd/kwok",))
JOBSET = ToolSet(name="jobset", module="sigs.k8s.io/jobset", packages=("sigs.k8s.io/jobset",))
TRAINER = ToolSet(
    name="trainer",
    module="github.com/kubeflow/trainer/v2",
    packages=("github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",),
)
PROMETHEUS = ToolSet(  # without the web interface, and with the discovery of Kubernetes alone
    name="prometheus",
    module="github.com/prometheus/prometheus",
    packages=("github.com/prometheus/prometheus/cmd/prometheus",),
    tags="remove_all_sd,enable_kubernetes_sd",
    stamps=("github.com/prometheus/common/version.Version={version}",),
)
KUBE_SCORE = ToolSet(
    name="kube-score",
    module="github.com/zegl/kube-score",
    packages=("github.com/zegl/kube-score/cmd/kube-score",),
)
TRAINING_OPERATOR = ToolSet(
    name="training-operator",
    module="github.com/kubeflow/training-operator",
    packages=("github.com/kubeflow/training-operator/cmd/training-operator.v1",),
)
VOLCANO = ToolSet(
    name="volcano",
    module="volcano.sh/volcano",
    packages=("volcano.sh/volcano/cmd/scheduler", "volcano.sh/volcano/cmd/controller-manager"),
)
SCHEDULER_PLUGINS = ToolSet(
    name="scheduler-plugins",
    module="sigs.k8s.io/scheduler-plugins",
    packages=(
        "sigs.k8s.io/scheduler-plugins/cmd/scheduler",
        "sigs.k8s.io/scheduler-plugins/cmd/controller",
    ),
)
VERSITYGW = ToolSet(  # an S3 server that keeps objects as files
    name="versitygw",
    module="github.com/versity/versitygw",
    packages=("github.com/versity/versitygw/cmd/versitygw",),
)
EVERY_RUN = (KUBERNETES, COREDNS, HELM, KUBE_SCORE, KWOK, VERSITYGW)
"""Tools that `make test` needs."""


def build(tool_set: ToolSet, figures: Figures) -> Path:
    """Build the tools unless they are in the cache, and return the folder of their binaries.

    Raises:
        HarnessError: Go is missing, or the build failed.
    """
    target = tool_set.cached
    if target.is_dir():
        return target
    with building(target.parent / f"{tool_set.name}.lock", tool_set.name):
        if not target.is_dir():
            print_line(
                f"building {tool_set.name} {tool_set.version}; this takes minutes without a cache"
            )
            start = time.monotonic()
            _build_into(tool_set, target)
            figures.note(f"build {tool_set.name}", time.monotonic() - start, tool_set.version)
    return target


def source(tool_set: ToolSet) -> Path:
    """Return the folder of the pinned module in the module cache, downloaded first if missing.

    Raises:
        HarnessError: Go is missing, or the download failed.
    """
    found = command(
        [go(), "mod", "download", "-json", tool_set.module],
        f"Downloading {tool_set.module}",
        env=_environment(),
        cwd=tool_set.folder,
        timeout_s=_BUILD_LIMIT_S,
    )
    return Path(json.loads(found)["Dir"])


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def _build_into(tool_set: ToolSet, target: Path) -> None:
    for left_over in target.parent.glob(f".{tool_set.name}-*"):
        shutil.rmtree(left_over)
    fresh = Path(tempfile.mkdtemp(prefix=f".{tool_set.name}-", dir=target.parent))
    fresh.chmod(0o755)
    command(
        [go(), "build", "-o", f"{fresh}/", *tool_set.flags, *tool_set.packages],
        f"Building {tool_set.name}",
        env=_environment(),
        cwd=tool_set.folder,
        timeout_s=_BUILD_LIMIT_S,
    )
    fresh.rename(target)


def go() -> str:
    """Return the path of the Go tool.

    Raises:
        HarnessError: Go is missing.
    """
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None:
        raise HarnessError("Go was not found; the tools need Go 1.26 or newer to build.")
    return found
