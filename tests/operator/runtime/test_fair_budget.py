"""Tests of the fair budget: each user has its own rate, and users take turns for a shared rate."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.limits import Rate
from ddp_operator.runtime.fair_budget import FairBudget, FairShare

OWN, SHARED = Rate(burst=2, per_second=0.1), Rate(burst=3, per_second=1.0)
START = 1000.0


def budget(shortest_turn: float = 0.0) -> FairBudget:
    return FairBudget(OWN, SHARED, shortest_turn=shortest_turn)


def use(share: FairShare, now: float) -> float:
    """Let a user act as soon as the budget allows. Return the seconds that the user waited."""
    seconds = share.wait(now)
    share.spend(now + seconds)
    return seconds


def test_busy_user_gets_the_shared_rate_while_other_users_are_idle() -> None:
    busy = budget().share()
    assert [use(busy, START) for _ in range(7)] == [0, 0, 0, 0, 0, 1, 2]


def test_user_within_its_own_rate_never_waits() -> None:
    found = budget()
    busy, quiet = found.share(), found.share()
    for _ in range(50):
        use(busy, START)
    assert use(quiet, START) == 0
    assert use(quiet, START) == 0
    assert use(quiet, START) > 0


def test_user_waits_only_once_for_a_permitted_use() -> None:
    found = budget()
    busy, other = found.share(), found.share()
    for _ in range(5):
        use(busy, START)
    assert busy.wait(START) == 1
    assert busy.wait(START + 0.5) == 0.5
    assert other.wait(START + 0.5) == 0  # Its own rate.
    assert busy.wait(START + 1.0) == 0
    busy.spend(START + 1.0)
    assert busy.wait(START + 1.0) > 0


def test_user_above_its_own_rate_waits_at_least_the_shortest_time() -> None:
    busy = budget(shortest_turn=0.2).share()
    assert [use(busy, START) for _ in range(3)] == pytest.approx([0, 0, 0.2])


def test_clock_that_is_set_back_blocks_no_user() -> None:
    busy = budget().share()
    for _ in range(20):
        use(busy, START)
    assert busy.wait(START) > 0
    assert busy.wait(START - 3600) == 0


def test_rate_of_each_user_may_be_changed() -> None:
    found = FairBudget(OWN, Rate(burst=1, per_second=0.001), shortest_turn=100.0)
    busy = found.share()
    for _ in range(2):
        use(busy, START)
    found.own_per_second = 1.0
    assert busy.wait(START + 1.0) == 0


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60))
def test_all_users_together_stay_within_both_rates(users: list[str]) -> None:
    found = budget()
    shares: defaultdict[str, FairShare] = defaultdict(found.share)
    waits = [use(shares[user], START) for user in users]
    at_once = sum(seconds == 0 for seconds in waits)
    assert at_once <= OWN.burst * len(shares) + SHARED.burst
    assert max(waits) <= len(users) / SHARED.per_second
