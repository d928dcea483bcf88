"""Errors of requests to a cluster."""


class ClusterError(Exception):
    """Error for a refused or failed request. Its text is the API server's own message."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, or 0 without a response."""
        self.reason = reason
        """Reason of the API server in one word, for example AlreadyExists, or empty."""
        self.retry_after = retry_after
        """Seconds to wait as requested by the server (Retry-After), or None."""


class NoClusterError(ClusterError):
    """Error for a missing kubeconfig, or for one that names no cluster."""


class ConflictError(ClusterError):
    """Conflict: the object was changed or replaced after it was read, or its name is in use."""


class NameTakenError(ClusterError):
    """Conflict about a name: an object with that name exists, and another owner has it."""
