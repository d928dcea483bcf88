"""Ranks that wait for their data are told of, once, by number and share."""

import time

import pytest

from ddp_trainer.observe.starvation import WINDOW_SECONDS, DataWatch
from ddp_trainer.observe.wait_clock import WaitClock
from ddp_trainer.ranks.agreement import NOT_STARVING, Starving
from tests.trainer.rank_processes import Launcher


class Clock:
    """Time that stands until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def watch(wait: WaitClock, rank: int = 0, world_size: int = 8) -> DataWatch:
    """One whose first batch has come."""
    made = DataWatch(wait, rank, world_size)
    assert made.judge(Starving(8.0, 28.0, 7.2), 1e3) is None
    assert made.judge(Starving(8.0, 28.0, 7.2), 1e3) is None
    return made


@pytest.mark.parametrize(
    ("waited", "starving"),
    [(0.9, NOT_STARVING), (1.0, NOT_STARVING), (3.0, Starving(1.0, 5, 0.3))],
)
def test_a_rank_starves_above_a_tenth_of_its_time(
    monkeypatch: pytest.MonkeyPatch, waited: float, starving: Starving
) -> None:
    clock, wait = Clock(monkeypatch), WaitClock()
    wait.total = 50.0  # the first batch, long ago
    made = watch(wait, rank=5)
    assert made.mine() == NOT_STARVING
    clock.now += 10.0
    wait.total += waited
    assert made.mine() == starving


def test_it_is_told_at_the_end_of_a_window_and_once() -> None:
    made = watch(WaitClock())
    one = Starving(1.0, 5.0, 0.34)
    half = WINDOW_SECONDS / 2
    said = [made.judge(one, half) for _ in range(4)]
    assert said[0] is None
    assert said[1] == (
        "rank 5 waits for data 34% of the time, and all ranks with it: raise data.workers, or make"
        " samples cheaper to read"
    )
    assert said[2:] == [None, None]


def test_it_is_told_again_after_it_was_over() -> None:
    made = watch(WaitClock())
    several = Starving(4.0, 10.0, 2.0)
    first, quiet, again = (made.judge(s, WINDOW_SECONDS) for s in (several, NOT_STARVING, several))
    assert first == again
    assert first
    assert first.startswith("4 of 8 ranks wait for data 50% of the time, and all ranks with them")
    assert quiet is None


@pytest.mark.slow
def test_the_rank_with_slow_data_is_named(launcher: Launcher) -> None:
    gang = launcher.call("probes:slow_data", 1, world=2)
    assert gang.wait() == [0, 0]
    (warning,) = gang.events("warning")
    assert warning["message"].startswith("rank 1 waits for data ")
