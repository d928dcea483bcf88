"""Fair budget: each user has a small rate of its own, and all users share an additional rate."""

from ddp_operator.limits import Rate
from ddp_operator.runtime.token_bucket import TokenBucket


class FairBudget:
    """Limit on the rate of an operation for many users, for example jobs.

    A user within its own rate never waits. Users above their own rate take turns at the shared
    rate, so a single busy user is hardly delayed. All times are in seconds of one clock, which must
    not start before 0.
    """

    def __init__(self, own: Rate, shared: Rate, *, shortest_turn: float) -> None:
        """Create a budget.

        Args:
            own: Rate of each user.
            shared: Additional rate that all users share.
            shortest_turn: Minimum wait, in seconds, of a user above its own rate.
        """
        self.own, self.shortest_turn = own, shortest_turn
        self.own_per_second = own.per_second
        """Tokens per second of each user, which may change at any time."""
        self.shared = TokenBucket(shared, 0.0)

    def share(self) -> "FairShare":
        """Return the share of a new user in this budget."""
        return FairShare(self)


class FairShare:
    """Share of one user in a fair budget."""

    __slots__ = ("_budget", "_own", "_turn")

    def __init__(self, budget: FairBudget) -> None:
        self._budget = budget
        self._own: TokenBucket | None = None
        self._turn: tuple[float, float] | None = None
        """Times of the first wait and of the turn while the user waits for the shared rate."""

    def wait(self, now: float) -> float:
        """Return the seconds until the user may proceed. A user that must wait is queued."""
        if self._turn is None:
            if self._bucket(now).seconds_until_token(now) == 0.0:
                return 0.0
            turn = now + max(self._budget.shortest_turn, self._budget.shared.take(now))
            self._turn = (now, turn)
        since, turn = self._turn
        return max(0.0, turn - now) if now >= since else 0.0  # The clock was set back.

    def spend(self, now: float) -> None:
        """Record that the user proceeds, after `wait` has returned 0."""
        if self._turn is None:
            self._bucket(now).take(now)
        self._turn = None

    def charge(self, now: float, cost: float, own_per_second: float) -> float:
        """Charge a past operation to the user's own rate, or to the shared rate if that is sooner.

        Args:
            now: Time of the budget's clock.
            cost: Number of tokens.
            own_per_second: Tokens per second of this user from now on.

        Returns:
            Seconds after which the user may proceed.
        """
        own = self._bucket(now)
        own.per_second = own_per_second
        due = min(own, self._budget.shared, key=lambda one: one.seconds_until_token(now))
        return due.take(now, cost)

    def _bucket(self, now: float) -> TokenBucket:
        if self._own is None:
            self._own = TokenBucket(self._budget.own, now)
        self._own.per_second = self._budget.own_per_second
        return self._own
