"""Change machine settings for the cluster, and restore them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, Final

from tests.harness import cgroups, mounts, network, paths, processes
from tests.harness.errors import HarnessError

_AT_LEAST: Final = {
    "net.ipv4.ip_forward": 1,
    "net.bridge.bridge-nf-call-iptables": 1,
    "fs.inotify.max_user_instances": 1024,
    "fs.inotify.max_user_watches": 524288,
}
# Settings that the kubelet changes.
_KUBELET_SETS: Final = (
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
)
# Folders that kubelet and containerd create at fixed paths.
_OUTSIDE: Final = ("/var/lib/kubelet", "/var/log/containers", "/run/containerd")
_NEEDED_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_LOGS: Final = "logs"


def check() -> None:
    """Check that a cluster can run on this machine.

    Raises:
        HarnessError: This is not Linux, not root, or root lacks a capability.
    """
    if sys.platform != "linux":
        raise HarnessError("The test cluster needs Linux.")
    if os.geteuid() != 0:
        raise HarnessError("The test cluster needs root: it starts kubelets and containers.")
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff"))
    for name, bit in _NEEDED_CAPABILITIES.items():
        if not effective >> bit & 1:
            raise HarnessError(
                f"The test cluster needs the capability {name}, which root lacks here."
            )


def prepare() -> None:
    """Save the machine's settings, then change those that the cluster needs."""
    before: dict[str, Any] = {
        "settings": {name: _read(name) for name in (*_AT_LEAST, *_KUBELET_SETS)},
        "outside": [path for path in _OUTSIDE if not Path(path).exists()],
    }
    _undo_file().write_text(json.dumps(before), encoding="utf-8")
    for name, least in _AT_LEAST.items():
        value = before["settings"][name]
        if value is not None and int(value) < least:
            _setting(name).write_text(str(least))


def clean() -> None:
    """Stop and remove everything that a whole or crashed cluster left, except its logs.

    Raises:
        HarnessError: A process does not end, or a file cannot be removed.
    """
    for name in processes.names():
        processes.stop(name, signal.SIGKILL)
    cgroups.kill()
    if paths.STATE.exists():
        _remove_shim_sockets()
        mounts.unmount_below(paths.STATE)
        _undo()
    network.remove()
    cgroups.remove()
    _empty_state()


def remove_logs() -> None:
    """Remove the logs of the last cluster."""
    shutil.rmtree(paths.STATE / _LOGS, ignore_errors=True)


def _remove_shim_sockets() -> None:
    """Remove the shims' sockets, which containerd keeps outside of its state folder."""
    for file in paths.STATE.glob("nodes/*/run/io.containerd.runtime.v2.task/*/*/address"):
        address = file.read_text(encoding="utf-8").strip()
        Path(address.removeprefix("unix://")).unlink(missing_ok=True)


def _undo() -> None:
    links = Path("/var/log/containers")
    for link in links.glob("*.log") if links.is_dir() else ():
        if link.is_symlink() and link.readlink().is_relative_to(paths.STATE):
            link.unlink()
    if not _undo_file().exists():
        return
    before = json.loads(_undo_file().read_text(encoding="utf-8"))
    for name, value in before["settings"].items():
        if value is not None and _read(name) != value:
            _setting(name).write_text(value)
    for path in before["outside"]:
        shutil.rmtree(path, ignore_errors=True)


def _empty_state() -> None:
    if not paths.STATE.exists():
        return
    for entry in paths.STATE.iterdir():
        if entry.name == _LOGS:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _undo_file() -> Path:
    return paths.STATE / "undo.json"


def _setting(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


def _read(name: str) -> str | None:
    file = _setting(name)
    return file.read_text(encoding="utf-8").strip() if file.exists() else None
