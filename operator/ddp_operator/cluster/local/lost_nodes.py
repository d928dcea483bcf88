"""Simulate lost nodes in a local run, so that users can see how a job recovers.

`ddpjob node lose` writes their numbers into a file in the folder of the run. The run then kills all
processes of these nodes, as a power failure would. It starts new pods of these nodes only after
`ddpjob node restore`. Until then the pods are Pending, as in a cluster without room.
"""

from pathlib import Path

from ddp_wire import node_ranges

POLL_SECONDS = 0.25
"""Seconds between two reads of the file."""
_FILE = "lost-nodes"


class LostNodes:
    """The file that lists the lost nodes of one run."""

    def __init__(self, home: Path) -> None:
        """Create the access to the file in the folder of a run."""
        self._path = home / _FILE

    def read(self) -> frozenset[int]:
        """Return the indices of the lost nodes. A missing or damaged file lists none."""
        try:
            return node_ranges.from_text(self._path.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            return frozenset()

    def write(self, nodes: frozenset[int]) -> None:
        """Replace the list of lost nodes.

        Raises:
            OSError: The file cannot be written.
        """
        pending = self._path.with_suffix(".tmp")
        pending.write_text(node_ranges.to_text(nodes), encoding="ascii")
        pending.replace(self._path)

    def clear(self) -> None:
        """Delete the list of lost nodes that an earlier run left."""
        self._path.unlink(missing_ok=True)


def waiting_status(node: int) -> dict[str, object]:
    """Return the pod status while the node of the pod is lost: Pending, with the reason."""
    message = f"node {node} of this run is lost until `ddpjob node restore` brings it back"
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    return {"phase": "Pending", "conditions": [condition]}
