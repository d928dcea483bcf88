"""Building the Go tools from pinned modules, once per content of the pins."""

from __future__ import annotations

import hashlib
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
from tests.harness.run import Figures, command, say

_BUILD_LIMIT_S = 3600


@dataclass(frozen=True)
class Family:
    """Tools that are built from one module of ours, which pins all that they need.

    Attributes:
        name: The folder of the module below `tools/`.
        module: The module that holds the tools.
        packages: The commands' packages; each binary is named by the last element.
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
        """The folder with the module's go.mod and go.sum."""
        return paths.TOOLS_MODULES / self.name

    @property
    def version(self) -> str:
        """The pinned version of the tools, with its `v`."""
        text = (self.folder / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"^require {re.escape(self.module)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise HarnessError(f"{self.folder / 'go.mod'} does not require {self.module}.")
        return found.group(1)

    @property
    def flags(self) -> list[str]:
        """The flags of `go build`, part of the cache's key."""
        major, minor = self.version.removeprefix("v").split(".")[:2]
        stamps = [
            "-X " + stamp.format(version=self.version, major=major, minor=minor)
            for stamp in self.stamps
        ]
        flags = ["-trimpath", "-buildvcs=false", "-mod=readonly"]
        return [*flags, f"-tags={self.tags}", "-ldflags=" + " ".join(["-s -w", *stamps])]

    @property
    def cached(self) -> Path:
        """The folder in the cache that holds the built binaries, whether built yet or not."""
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


KUBERNETES = Family(
    name="kubernetes",
    module="k8s.io/kubernetes",
    packages=tuple(
        f"k8s.io/kubernetes/cmd/{name}"
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
        )
    ),
    tags="selinux,notest,grpcnotrace",
    stamps=(
        *_version_stamps("k8s.io/component-base/version"),
        *_version_stamps("k8s.io/client-go/pkg/version"),
    ),
)
HELM = Family(
    name="helm",
    module="helm.sh/helm/v3",
    packages=("helm.sh/helm/v3/cmd/helm",),
    stamps=(  # its version, and that of the Kubernetes above for charts rendered without one
        "helm.sh/helm/v3/internal/version.version={version}",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=35",
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1",
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=35",
    ),
)
COREDNS = Family(
    name="coredns",
    module="github.com/coredns/coredns",
    packages=("github.com/coredns/coredns",),
)


def build(family: Family, figures: Figures) -> Path:
    """Build a family unless the cache has it, and return the folder of its binaries.

    Raises:
        HarnessError: Go is missing, or the build failed.
    """
    target = family.cached
    if target.is_dir():
        return target
    with building(target.parent / f"{family.name}.lock", family.name):
        if not target.is_dir():
            say(f"building {family.name} {family.version}; minutes when nothing is cached")
            start = time.monotonic()
            _build_into(family, target)
            figures.note(f"build {family.name}", time.monotonic() - start, family.version)
    return target


def _build_into(family: Family, target: Path) -> None:
    for left_over in target.parent.glob(f".{family.name}-*"):
        shutil.rmtree(left_over)
    fresh = Path(tempfile.mkdtemp(prefix=f".{family.name}-", dir=target.parent))
    fresh.chmod(0o755)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    command(
        [_go(), "build", "-o", f"{fresh}/", *family.flags, *family.packages],
        f"Building {family.name}",
        env=environment,
        cwd=family.folder,
        timeout_s=_BUILD_LIMIT_S,
    )
    fresh.rename(target)


def _go() -> str:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None:
        raise HarnessError("Go 1.26 or newer is needed to build the tools and was not found.")
    return found
