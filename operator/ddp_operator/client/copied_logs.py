"""Read the copies of the ranks' logs in the directory of a run, which outlive the pods."""

from collections.abc import Collection, Iterator
from pathlib import Path

from ddp_operator.client.errors import RequestError
from ddp_operator.client.log_lines import LogLine, LogParser
from ddp_operator.client.run_events import read_lines

_NAMES = ("stdout.log.old", "stdout.log", "stderr.log.old", "stderr.log")
"""Names of the files of one rank, in the order in which they are read."""


def copied_lines(
    directory: Path, ranks_per_node: int, shown: Collection[tuple[str, int | None]], job: str
) -> Iterator[LogLine]:
    """Yield the copied lines of the nodes and attempts that the logs of the pods lack.

    The lines have no times. Their rank is that of a job whose nodes all train.

    Args:
        directory: Directory of the run.
        ranks_per_node: Number of ranks of each node.
        shown: Pod and attempt of the lines that the pods' own logs have.
        job: Name of the job.

    Raises:
        RequestError: The directory does not exist, or a file in it is no regular file.
    """
    if not directory.is_dir():
        raise RequestError(f"{directory}: no such directory")
    for attempt, node, folder in sorted(_folders(directory)):
        pod = f"{job}-{node}"
        if (pod, attempt) in shown:
            continue
        for local, of_rank in sorted(_ranks(folder)):
            parser = LogParser(pod, attempt)
            rank = node * ranks_per_node + local
            files = [of_rank / name for name in _NAMES if (of_rank / name).exists()]
            for raw in read_lines(files):
                line = parser.parse(raw)
                yield LogLine(line.text, pod, rank, attempt)


def _folders(directory: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield attempt, node and path of each copy."""
    for path in (directory / "logs").glob("attempt-*/node-*"):
        attempt, node = path.parent.name.removeprefix("attempt-"), path.name.removeprefix("node-")
        if attempt.isdigit() and node.isdigit():
            yield int(attempt), int(node), path


def _ranks(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the local rank and the path of the files of each rank."""
    for path in folder.glob("*/attempt_0/*"):
        if path.name.isdigit():
            yield int(path.name), path
