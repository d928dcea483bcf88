"""Exit codes, a part of the wire contract.

They have their own module so that the agent can handle SIGTERM before it imports pydantic.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ranks and agents that the operator distinguishes."""

    OK = 0
    """Success: the run, or the command, is complete."""
    FAILED = 1
    """Any other failure. The attempt counts as failed, and a retry may succeed."""
    BAD_INPUT = 2
    """Invalid input: the run cannot succeed with this spec. Never retried."""
    VOLUME_FAILED = 74
    """The volume cannot be read or written. An infrastructure failure: the operator retries it. The
    number is EX_IOERR of `sysexits.h`."""
    PREEMPTED = 85
    """The rank stopped on request after it saved a checkpoint. The next attempt uses no budget."""
    CORRUPTED = 86
    """This rank's weights differ from those of most ranks: silent corruption. An infrastructure
    failure: the next attempt resumes from the newest checkpoint, and the Kubernetes node gets a
    strike."""
    REPLICAS_DIFFER = 87
    """The weights of the ranks differ, and no majority shows which of them are right. The attempt
    counts as failed. A rank of the majority has this code, too, but never as the cause."""
    CORRUPTION_STOP = 88
    """The weights of the ranks differ, and `replicas.policy` is `stop`. Never retried."""
