"""Derive the threads and worker processes of each rank from the CPU quota of the container."""

from dataclasses import dataclass

MAX_DEFAULT_WORKERS = 8
"""Maximum default number of worker processes per rank. More processes rarely speed up loading."""


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """One rank's share of the CPUs."""

    threads: int
    """Number of compute threads of the rank."""
    workers: int
    """Number of worker processes that prepare batches."""
    warning: str | None = None
    """Warning if the requested workers need more CPUs than the container may use, or None."""


def spare_cpus(cpus: int, local_ranks: int) -> int:
    """Return how many CPUs each rank can spare for worker processes, at most the useful number."""
    return min(MAX_DEFAULT_WORKERS, max(1, cpus // local_ranks) - 1)


def divide_cpus(cpus: int, local_ranks: int, requested: int | None) -> CpuBudget:
    """Divide the CPUs of a container among its ranks, and each share among threads and workers.

    Args:
        cpus: Number of CPUs in the container's quota.
        local_ranks: Ranks in the container.
        requested: Worker processes per rank. The default is the number of CPUs that the rank can
            spare.
    """
    share = max(1, cpus // local_ranks)
    if requested is None:
        workers = spare_cpus(cpus, local_ranks)
        return CpuBudget(threads=max(1, share - workers), workers=workers)
    warning = None
    if requested * local_ranks > cpus:
        warning = (
            f"data.workers is {requested} on each of {local_ranks} ranks, but this container may"
            f" use only {cpus} CPUs: the worker processes slow each other down"
        )
    return CpuBudget(threads=max(1, share - requested), workers=requested, warning=warning)
