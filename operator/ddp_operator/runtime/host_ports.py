"""Index the jobs by their block of host ports, and reserve a free block for a job that starts.

The status of a job is the record of its block. Between a decision and the write of that status,
other workers decide about other jobs. So the block of a decision stays reserved in memory until the
job's status has it. A restarted operator has listed all jobs before it decides.

Jobs that the operator cannot list may have the same block. Then the scheduler keeps their pods on
different Kubernetes nodes, because each pod declares the ports of its agent.
"""

from ddp_operator.builders.host_ports import PortRange
from ddp_operator.cluster.base import Key, Manifest


class HostPorts:
    """Index of the blocks of all jobs with `network.hostNetwork`."""

    def __init__(self) -> None:
        """Create an empty index."""
        self._held: dict[Key, int] = {}
        """First port of the block in the status of each job."""
        self._reserved: dict[Key, int] = {}
        """First port of the block of each job that is about to start."""

    def put(self, key: Key, job: Manifest) -> None:
        """Store the block of a new or changed job."""
        first = _first_port(job)
        if first is not None:
            self._held[key] = first
        else:
            self._held.pop(key, None)
        if first is not None or not _may_start(job):
            self._reserved.pop(key, None)

    def drop(self, key: Key) -> None:
        """Release the block of a job that no longer exists."""
        self._held.pop(key, None)
        self._reserved.pop(key, None)

    def block(self, key: Key, ports: PortRange) -> int | None:
        """Return the first port of the job's block, and reserve a free one if it has none.

        Args:
            key: Key of the job.
            ports: Range of the installation. A block outside the range is replaced.

        Returns:
            The first port, or None if all blocks are in use.
        """
        own = self._held.get(key, self._reserved.get(key))
        if own is not None and own in ports.blocks:
            return own
        others = (self._held | self._reserved).items()
        found = ports.free_block(first for other, first in others if other != key)
        if found is not None:
            self._reserved[key] = found
        return found


def _first_port(job: Manifest) -> int | None:
    found = ((job.get("status") or {}).get("pods") or {}).get("firstPort")
    return found if isinstance(found, int) else None


def _may_start(job: Manifest) -> bool:
    """Return whether a job without pods may still get pods on the network of their nodes."""
    spec, status = job.get("spec") or {}, job.get("status") or {}
    network = spec.get("network")
    wants = isinstance(network, dict) and network.get("hostNetwork") is True
    return wants and not spec.get("suspend") and not status.get("completionTime")
