"""Fair budget: an own share for every key, and turns for the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.runtime.fair_budget import FairBudget, Rate

OWN, SHARED = Rate(burst=2, per_second=0.1), Rate(burst=3, per_second=1.0)
START = 1000.0


def budget(shortest_turn: float = 0.0) -> FairBudget[str]:
    return FairBudget(OWN, SHARED, shortest_turn=shortest_turn)


def use(of: FairBudget[str], key: str, now: float) -> float:
    """Go on with a key as soon as it may. Return the seconds that it waited."""
    seconds = of.wait(key, now)
    of.spend(key, now + seconds)
    return seconds


def test_busy_key_uses_the_shared_rate_while_the_others_are_quiet() -> None:
    found = budget()
    assert [use(found, "busy", START) for _ in range(7)] == [0, 0, 0, 0, 0, 1, 2]


def test_key_within_its_own_rate_never_waits() -> None:
    found = budget()
    for _ in range(50):
        use(found, "busy", START)
    assert use(found, "quiet", START) == 0
    assert use(found, "quiet", START) == 0
    assert use(found, "quiet", START) > 0


def test_key_keeps_its_turn() -> None:
    found = budget()
    for _ in range(5):
        use(found, "busy", START)
    assert found.wait("busy", START) == 1
    assert found.wait("busy", START + 0.5) == 0.5
    assert found.wait("other", START + 0.5) == 0  # Its own rate.
    assert found.wait("busy", START + 1.0) == 0
    found.spend("busy", START + 1.0)
    assert found.wait("busy", START + 1.0) > 0


def test_key_above_its_own_rate_waits_at_least_the_shortest_turn() -> None:
    found = budget(shortest_turn=0.2)
    assert [use(found, "busy", START) for _ in range(3)] == pytest.approx([0, 0, 0.2])


def test_clock_that_is_set_back_blocks_no_key() -> None:
    found = budget()
    for _ in range(20):
        use(found, "busy", START)
    assert found.wait("busy", START) > 0
    assert found.wait("busy", START - 3600) == 0


def test_rate_of_each_key_may_change() -> None:
    found = FairBudget[str](OWN, Rate(burst=1, per_second=0.001), shortest_turn=100.0)
    for _ in range(2):
        use(found, "busy", START)
    found.own_per_second = 1.0
    assert found.wait("busy", START + 1.0) == 0


def test_forgotten_key_starts_again() -> None:
    found = budget()
    for _ in range(20):
        use(found, "busy", START)
    found.forget("busy")
    assert found.wait("busy", START) == 0


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60))
def test_all_keys_together_stay_within_both_rates(keys: list[str]) -> None:
    found = budget()
    waits = [use(found, key, START) for key in keys]
    at_once = sum(seconds == 0 for seconds in waits)
    assert at_once <= OWN.burst * len(set(keys)) + SHARED.burst
    assert max(waits) <= len(keys) / SHARED.per_second
