"""Define the ports of worker pods, which are ports of the Kubernetes node with `hostNetwork`.

In a network of its own, each pod uses the same ports. Pods on the network of a Kubernetes node
share its ports with the pods of other jobs. So the installation reserves a range of ports for them,
and each job has a block of that range on all Kubernetes nodes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ddp_operator.api.job import DDPJob
from ddp_wire.contract import (
    AGENT_PORT,
    BARRIER_PORT,
    RENDEZVOUS_PORT_BASE,
    RENDEZVOUS_PORT_COUNT,
)

PORTS_PER_JOB = 2 + RENDEZVOUS_PORT_COUNT
"""Number of ports in the block of one job: agent, start barrier, and the stores of attempts."""
_FIRST, _LAST = 1024, 65535
"""Ports that a process without privileges may use."""


class PodPorts(NamedTuple):
    """Ports on which the agent of each pod listens."""

    agent: int
    barrier: int
    rendezvous: int
    """First of the ports of the rendezvous store. Attempts use them in turn."""


@dataclass(frozen=True)
class PortRange:
    """Range of ports that an installation reserves on all Kubernetes nodes."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """Return the range of a text such as 20000-29999.

        Raises:
            ValueError: The text is no range, or has no room for one job.
        """
        found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
        first, last = (int(one) for one in found.groups()) if found else (0, 0)
        if not _FIRST <= first <= last <= _LAST or last - first + 1 < PORTS_PER_JOB:
            raise ValueError(
                f"must be FIRST-LAST with at least {PORTS_PER_JOB} ports from {_FIRST} to {_LAST},"
                " for example 20000-29999"
            )
        return cls(first, last)

    @property
    def blocks(self) -> range:
        """First ports of all blocks."""
        return range(self.first, self.last - PORTS_PER_JOB + 2, PORTS_PER_JOB)

    def free_block(self, taken: Iterable[int]) -> int | None:
        """Return the first port of the lowest free block, or None.

        Args:
            taken: First ports of the blocks of other jobs, perhaps of an earlier range.
        """
        others = frozenset(taken)
        return next((one for one in self.blocks if not _overlaps(one, others)), None)

    def __str__(self) -> str:
        """Return the range as in the settings."""
        return f"{self.first}-{self.last}"


def _overlaps(block: int, others: Iterable[int]) -> bool:
    return any(abs(block - other) < PORTS_PER_JOB for other in others)


def ports_of(job: DDPJob) -> PodPorts:
    """Return the ports of a job's pods: those of its block, or else the default ones."""
    first = job.status.pods.first_port if job.status.pods is not None else None
    if first is None:
        return PodPorts(AGENT_PORT, BARRIER_PORT, RENDEZVOUS_PORT_BASE)
    return PodPorts(first, first + 1, first + 2)
