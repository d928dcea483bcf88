"""Exit codes of `ddpjob`."""

from enum import IntEnum


class CommandCode(IntEnum):
    """Exit codes of `ddpjob`."""

    OK = 0
    """The command has done its work. For `run`, `wait` and `submit --wait`: the job completed."""
    FAILED = 1
    """The job failed. For `checkpoints verify`: a checkpoint is damaged."""
    BAD_INPUT = 2
    """Invalid command line or manifest, or there is no such job or file."""
    NO_CLUSTER = 3
    """No cluster is configured, or the API server does not answer or refuses the request. For
    `logs`: lines of a pod are missing."""
    TIMEOUT = 124
    """The time of `--timeout` is over."""
    INTERRUPTED = 130
    """Ctrl-C ended the command. For `run`: the job was stopped."""
