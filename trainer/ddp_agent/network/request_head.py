"""Limit what the agent holds of a request before it knows who sent it.

http.server keeps up to a hundred header lines of 64 KiB for each connection before any handler
runs. With all connections that a stranger may open, that is most of the memory of a small pod.

Process: agent (one thread per connection).
"""

from http.client import HTTPException
from typing import IO

HEAD_BYTES = 16_384
"""Maximum size of the request line and the headers, in bytes."""


class LimitedHead:
    """Stream of the requests of a connection, whose heads have a limit."""

    def __init__(self, stream: IO[bytes]) -> None:
        """Wrap the stream of a connection."""
        self._stream, self._left = stream, HEAD_BYTES
        self.read, self.close = stream.read, stream.close

    def begin(self) -> None:
        """Begin the next request."""
        self._left = HEAD_BYTES

    def readline(self, limit: int) -> bytes:
        """Return the next line of the head.

        Args:
            limit: Maximum number of bytes.

        Raises:
            HTTPException: If the head is too large. http.server answers with status 431, or ends
                the connection if not even the request line fits.
        """
        line = self._stream.readline(min(limit, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise HTTPException(f"the head must have at most {HEAD_BYTES} bytes")
        return line

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return self._stream.closed
