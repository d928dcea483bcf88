"""Install missing Debian packages, and keep a few newer binaries outside of the system."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness import paths
from tests.harness.errors import HarnessError
from tests.harness.locks import building
from tests.harness.run import Figures, command, installed, print_line

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
CNI_PLUGINS = Path("/usr/lib/cni")
# Commands or files that the harness needs, with the packages that provide them.
RUNTIME_PACKAGES = {
    "ip": "iproute2",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "runc": "runc",
    str(CNI_PLUGINS / "bridge"): "containernetworking-plugins",
}
BUILD_PACKAGES = {"gcc": "gcc", "/usr/include/stdio.h": "libc6-dev"}
IMAGE_PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}


@dataclass(frozen=True)
class Unpacked:
    """Packages whose binaries are unpacked only into the cache."""

    name: str
    suite: str
    packages: Mapping[str, str]
    """The packages, with the start of their versions."""
    binaries: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder of the binaries in the cache."""
        pins = "-".join(version for _, version in sorted(self.packages.items()))
        return paths.cache() / "tools" / f"debian-{self.name}-{pins}"


NEWER = Unpacked(
    "trixie",
    "trixie",
    {"etcd-server": "3.5", "containerd": "1.7"},
    ("etcd", "containerd", "containerd-shim-runc-v2", "ctr"),
)
"""Versions that bookworm lacks. They run with bookworm's libc."""
PROMETHEUS = Unpacked("prometheus", "bookworm", {"prometheus": "2.42"}, ("prometheus", "promtool"))
"""Packages of Prometheus, which are only unpacked because their installation starts a service."""


def ensure(packages: dict[str, str]) -> None:
    """Install the packages whose command or file is missing.

    Raises:
        HarnessError: apt-get is missing, or failed twice.
    """
    missing = sorted({package for probe, package in packages.items() if not _present(probe)})
    if not missing:
        return
    start = time.monotonic()
    install = ["install", "-y", "--no-install-recommends", *missing]
    try:
        _apt_get(["update"])
        _apt_get(install)
    except HarnessError:
        _apt_get(["update"])
        _apt_get(install)
    print_line(f"installed {', '.join(missing)} in {time.monotonic() - start:.1f} s")


def unpack(wanted: Unpacked, figures: Figures) -> Path:
    """Download packages into the cache unless they are there; return the folder of the binaries.

    Raises:
        HarnessError: The packages cannot be downloaded, or lack such binaries.
    """
    target = wanted.folder
    if target.is_dir():
        return target
    lock = target.parent / f"debian-{wanted.name}.lock"
    with building(lock, "Debian binaries"), figures.phase(f"fetch {wanted.name}"):
        if not target.is_dir():
            _fetch_into(target, wanted)
    return target


def mirror() -> str:
    """Return the address of the Debian archive that this machine's apt uses.

    Raises:
        HarnessError: apt has no Debian archive.
    """
    listing = _apt_get(
        ["indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    )
    for line in listing.splitlines():
        origin, codename, address = line.split(" ", 2)
        if origin == "Debian" and re.fullmatch(r"[a-z]+", codename):
            return address
    raise HarnessError("apt has no Debian archive on this machine; run `apt-get update` once.")


def versions(folder: Path) -> dict[str, str]:
    """Return the versions of the packages that `unpack` put into this folder."""
    lines = (folder / "versions.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)


def _present(probe: str) -> bool:
    return Path(probe).exists() if probe.startswith("/") else installed(probe)


def _apt_get(arguments: Sequence[str], options: Sequence[str] = (), cwd: Path | None = None) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return command(
        ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *options, *arguments],
        f"apt-get {arguments[0]}",
        env=environment,
        cwd=cwd,
    )


def _fetch_into(target: Path, packages: Unpacked) -> None:
    prefix = f".debian-{packages.name}-"
    for left_over in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_over)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    options = _private_options(work, packages.suite)
    _apt_get(["update"], options)
    wanted = [f"{name}={version}.*" for name, version in packages.packages.items()]
    _apt_get(["download", *wanted], options, cwd=work)
    fresh = work / "bin"
    fresh.mkdir()
    fetched: list[str] = []
    for package in sorted(work.glob("*.deb")):
        fetched.append(" ".join(package.name.split("_")[:2]))
        command(["dpkg", "-x", package, work / "unpacked"], f"Unpacking {package.name}")
    for name in packages.binaries:
        _take_binary(work / "unpacked", name, fresh)
    (fresh / "versions.txt").write_text("\n".join(fetched) + "\n", encoding="utf-8")
    fresh.rename(target)
    shutil.rmtree(work)


def _private_options(work: Path, suite: str) -> list[str]:
    """Return apt options that keep its sources, lists and downloads below `work`."""
    sources = work / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n", encoding="utf-8")
    (work / "lists" / "partial").mkdir(parents=True)
    (work / "archives" / "partial").mkdir(parents=True)
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "APT::Architecture": _architecture(),
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _architecture() -> str:
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    machine = platform.machine()
    if machine not in names:
        raise HarnessError(f"The harness supports no Debian architecture for {machine}.")
    return names[machine]


def _take_binary(unpacked: Path, name: str, target: Path) -> None:
    found = unpacked / "usr" / "bin" / name
    if not found.is_file():
        raise HarnessError(f"The Debian packages contain no {name}.")
    shutil.copy2(found, target / name)
