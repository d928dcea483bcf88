"""Token bucket: a few uses at once, and a steady rate after them."""


class TokenBucket:
    """Bounds how often something happens. It is full at first.

    All times are in seconds of one clock. A clock that is set back only delays the next token.
    """

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        """Create a bucket of `burst` tokens that refills with `per_second` tokens."""
        self._burst, self._tokens, self._since = burst, burst, now
        self.per_second = per_second

    def take(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens. Return the seconds until the bucket has covered them; 0 if it did."""
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
