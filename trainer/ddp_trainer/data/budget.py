"""How many threads and worker processes a rank may have, by the CPUs that its container may use."""

from dataclasses import dataclass

MOST_WORKERS = 8
"""More than so many seldom make one rank's data come faster."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One rank's share of the machine."""

    threads: int
    """Compute threads of the rank itself."""
    workers: int
    """Processes that prepare batches."""
    warning: str | None = None
    """One sentence, if what is asked for is more than there is."""


def share_out(cpus: int, local_ranks: int, asked: int | None) -> Budget:
    """Divides a container's CPUs among its ranks, and each rank's among threads and workers.

    Args:
        cpus: What the container may use, by its quota.
        local_ranks: Ranks in it.
        asked: Worker processes per rank; what the CPUs leave when not stated.
    """
    mine = max(1, cpus // local_ranks)
    if asked is None:
        workers = min(MOST_WORKERS, mine - 1)
        return Budget(threads=max(1, mine - workers), workers=workers)
    warning = None
    if asked * local_ranks > cpus:
        warning = (
            f"data.workers {asked} on each of {local_ranks} ranks is more than the {cpus} CPUs"
            " that this container may use: they slow each other down"
        )
    return Budget(threads=max(1, mine - asked), workers=asked, warning=warning)
