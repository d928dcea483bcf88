"""Define a fault: one finding that the current attempt cannot continue."""

import math
from dataclasses import dataclass

from ddp_operator.api.status import Cause, FailureStatus

STOPPED = "Preempted"
"""Reason of an attempt whose ranks saved a checkpoint and stopped on request."""


@dataclass(frozen=True)
class Fault:
    """One finding that the current attempt cannot continue."""

    failure: FailureStatus
    at: float = math.inf
    """Time of the failure in unix seconds, by a clock that all faults of the attempt share.
    Infinite if only the operator has observed the fault."""
    secondary: bool = False
    """Whether the ranks failed only because they lost a peer. Such a fault is never the root
    cause."""
    permanent: bool = False
    """Whether every further attempt would fail in the same way."""

    @property
    def free(self) -> bool:
        """Return whether the fault costs no budget."""
        return self.failure.cause is Cause.FREE
