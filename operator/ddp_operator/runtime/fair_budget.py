"""Fair budget: every key has a small share of its own, and all keys share the rest."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ddp_operator.runtime.token_bucket import TokenBucket

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Rate:
    """Tokens that are there at first and at most, and tokens per second after that."""

    burst: float
    per_second: float


class FairBudget(Generic[K]):
    """Bounds how often something happens for each of many keys.

    A key that stays within its own rate never waits, regardless of the others. A key above it takes
    its turn for the shared rate, so that one busy key is hardly slowed down while the others are
    quiet. All times are in seconds of one clock, which must not start before 0.
    """

    def __init__(self, own: Rate, shared: Rate, *, shortest_turn: float) -> None:
        """Create a budget.

        Args:
            own: Rate of each key.
            shared: Rate of all keys together above their own rates.
            shortest_turn: Seconds that a key above its own rate waits at least.
        """
        self._own_burst, self._shortest_turn = own.burst, shortest_turn
        self.own_per_second = own.per_second
        """Tokens per second of each key, which may change at any time."""
        self._own: dict[K, TokenBucket] = {}
        self._shared = TokenBucket(shared.burst, shared.per_second, 0.0)
        self._turns: dict[K, tuple[float, float]] = {}
        """Time of the first wait and of the turn of each key that waits for the shared rate."""

    def wait(self, key: K, now: float) -> float:
        """Return the seconds until the key may go on. A key that must wait gets its turn here."""
        if key not in self._turns:
            if self._bucket(key, now).seconds_until_token(now) == 0.0:
                return 0.0
            turn = now + max(self._shortest_turn, self._shared.take(now))
            self._turns[key] = (now, turn)
        since, turn = self._turns[key]
        return max(0.0, turn - now) if now >= since else 0.0  # The clock was set back.

    def spend(self, key: K, now: float) -> None:
        """Record that the key goes on, after `wait` returned 0."""
        if self._turns.pop(key, None) is None:
            self._bucket(key, now).take(now)

    def forget(self, key: K) -> None:
        """Drop the state of a key that no longer exists."""
        self._own.pop(key, None)
        self._turns.pop(key, None)

    def _bucket(self, key: K, now: float) -> TokenBucket:
        bucket = self._own.get(key)
        if bucket is None:
            bucket = self._own[key] = TokenBucket(self._own_burst, self.own_per_second, now)
        bucket.per_second = self.own_per_second
        return bucket
