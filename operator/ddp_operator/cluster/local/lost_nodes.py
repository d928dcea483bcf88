"""Nodes that the user has taken away from a local run, to see what the loss of a node does.

`ddpjob node lose` writes their numbers into a file in the folder of the run. The run then kills all
processes of these nodes, as a power failure would. It starts their next pods only after
`ddpjob node restore`: until then they are Pending, as without room in a cluster.
"""

from pathlib import Path

from ddp_wire import node_ranges

POLL_SECONDS = 0.25
"""Seconds between two looks at the file."""
_FILE = "lost-nodes"


class LostNodes:
    """The file with the lost nodes of one run."""

    def __init__(self, home: Path) -> None:
        """Create the set of the run in a folder."""
        self._path = home / _FILE

    def read(self) -> frozenset[int]:
        """Return the lost nodes. An absent or damaged file names none."""
        try:
            return node_ranges.from_text(self._path.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            return frozenset()

    def write(self, nodes: frozenset[int]) -> None:
        """Replace the lost nodes.

        Raises:
            OSError: The file cannot be written.
        """
        pending = self._path.with_suffix(".tmp")
        pending.write_text(node_ranges.to_text(nodes), encoding="ascii")
        pending.replace(self._path)

    def clear(self) -> None:
        """Forget the lost nodes of an earlier run."""
        self._path.unlink(missing_ok=True)


def waiting_status(node: int) -> dict[str, object]:
    """Return the status of a pod whose node is lost."""
    message = f"node {node} of this run is lost until `ddpjob node restore` brings it back"
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    return {"phase": "Pending", "conditions": [condition]}
