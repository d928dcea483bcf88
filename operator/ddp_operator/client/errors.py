"""Errors of the client. Each message is one sentence for the user."""

from ddp_operator.cluster.errors import ClusterError as ClusterError  # noqa: PLC0414


class RequestError(ValueError):
    """Error for a request that cannot be done as it was given."""


class NoSuchJobError(RequestError):
    """Error for a job that does not exist."""


class WaitTimeoutError(TimeoutError):
    """Error for a job that has not reached the awaited state in time."""
