"""Find processes and control groups of a pod's containers on this machine."""

from pathlib import Path
from typing import Any

from ddp_wire.contract import WORKER_CONTAINER
from tests.harness import cgroups

JSON = dict[str, Any]


def control_group(pod: JSON, container: str = WORKER_CONTAINER) -> Path:
    """Return the control group that accounts for a container's memory.

    Raises:
        LookupError: The container does not run.
    """
    statuses = pod["status"].get("containerStatuses", [])
    found = next((s.get("containerID", "") for s in statuses if s["name"] == container), "")
    name = found.rpartition("/")[2]
    if name:
        for root in _memory_first():
            for folder in (root / cgroups.TREE).glob(f"**/{name}"):
                return folder
    raise LookupError(f"container {container} of {pod['metadata']['name']} is not running")


def processes(pod: JSON, container: str = WORKER_CONTAINER) -> dict[int, int]:
    """Return the container's process ids on this machine, by the id inside the container.

    Raises:
        LookupError: The container does not run.
    """
    found = {}
    for pid in (control_group(pod, container) / "cgroup.procs").read_text().split():
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue  # The process ended at the same time.
        line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
        found[int(line.split()[-1])] = int(pid)
    return found


def memory_kills(folder: Path) -> int:
    """Return how many processes of a control group the kernel has killed for lack of memory.

    Raises:
        LookupError: The group has no such counter.
    """
    for name in ("memory.events", "memory.oom_control"):
        file = folder / name
        if file.exists():
            words = dict(line.split() for line in file.read_text().splitlines())
            return int(words["oom_kill"])
    raise LookupError(f"{folder} has no counter of out-of-memory kills")


def _memory_first() -> list[Path]:
    return sorted(cgroups.hierarchies(), key=lambda root: root.name != "memory")
