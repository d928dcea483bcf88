"""Tests of the warning about ranks that wait for their data."""

import time

import pytest

from ddp_trainer.observe.starvation import WINDOW_SECONDS, DataWaitMonitor
from ddp_trainer.observe.wait_clock import WaitClock
from ddp_trainer.ranks.agreement import NOT_STARVING, DataStarvation
from tests.trainer.rank_processes import Launcher


class Clock:
    """A manual clock in place of `time.monotonic`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def monitor_of(wait: WaitClock, rank: int = 0, world_size: int = 8) -> DataWaitMonitor:
    """Create a monitor that has passed the exchanges of the start."""
    monitor = DataWaitMonitor(wait, rank, world_size)
    assert monitor.assess(DataStarvation(8.0, 28.0, 7.2), 1e3) is None
    assert monitor.assess(DataStarvation(8.0, 28.0, 7.2), 1e3) is None
    return monitor


@pytest.mark.parametrize(
    ("waited", "starving"),
    [(0.9, NOT_STARVING), (1.0, NOT_STARVING), (3.0, DataStarvation(1.0, 5, 0.3))],
)
def test_rank_counts_as_starved_above_a_tenth_of_its_time(
    monkeypatch: pytest.MonkeyPatch, waited: float, starving: DataStarvation
) -> None:
    clock, wait = Clock(monkeypatch), WaitClock()
    wait.total = 50.0  # The wait for the first batch does not count.
    monitor = monitor_of(wait, rank=5)
    assert monitor.own_starvation() == NOT_STARVING
    clock.now += 10.0
    wait.total += waited
    assert monitor.own_starvation() == starving


def test_starvation_warning_comes_once_at_the_end_of_a_window() -> None:
    monitor = monitor_of(WaitClock())
    one = DataStarvation(1.0, 5.0, 0.34)
    half = WINDOW_SECONDS / 2
    warnings = [monitor.assess(one, half) for _ in range(4)]
    assert warnings[0] is None
    assert warnings[1] == (
        "rank 5 waits for data 34% of the time, and all other ranks wait for it: raise"
        " data.workers, or make samples cheaper to read"
    )
    assert warnings[2:] == [None, None]


def test_starvation_warning_repeats_after_a_window_without_starvation() -> None:
    monitor = monitor_of(WaitClock())
    several = DataStarvation(4.0, 10.0, 2.0)
    first, quiet, again = (
        monitor.assess(s, WINDOW_SECONDS) for s in (several, NOT_STARVING, several)
    )
    assert first == again
    assert first
    assert first.startswith("4 of 8 ranks wait for data 50% of the time, and all other ranks")
    assert quiet is None


@pytest.mark.slow
def test_starvation_warning_names_the_rank_with_slow_data(launcher: Launcher) -> None:
    gang = launcher.call("probes:train_with_slow_data", 1, world=2)
    assert gang.wait() == [0, 0]
    (warning,) = gang.events("warning")
    assert warning["message"].startswith("rank 1 waits for data ")
