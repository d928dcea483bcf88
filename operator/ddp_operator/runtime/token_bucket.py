"""Token bucket: permits a burst of operations, and then a steady rate."""

from ddp_operator.limits import Rate


class TokenBucket:
    """Limit on the rate of an operation. The bucket is full at the start.

    All times are in seconds of one clock. A clock that is set back only delays the next token.
    """

    __slots__ = ("_burst", "_since", "_tokens", "per_second")

    def __init__(self, rate: Rate, now: float) -> None:
        """Create a full bucket. The attribute with its tokens per second may change at any time."""
        self._burst, self._tokens, self._since = rate.burst, rate.burst, now
        self.per_second = rate.per_second

    def take(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens. Return the seconds until the bucket has refilled them, or 0."""
        self._refill(now)
        self._tokens -= tokens
        return max(0.0, -self._tokens / self.per_second)

    def seconds_until_token(self, now: float) -> float:
        """Return the seconds until the bucket has a whole token."""
        self._refill(now)
        return max(0.0, (1.0 - self._tokens) / self.per_second)

    def _refill(self, now: float) -> None:
        gained = max(0.0, now - self._since) * self.per_second
        self._tokens, self._since = min(self._burst, self._tokens + gained), now
