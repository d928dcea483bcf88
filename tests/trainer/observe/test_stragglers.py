"""A rank that is slower than the others is named, and equal ranks never are."""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
import torch

from ddp_trainer.observe.stragglers import WINDOWS, StragglerMonitor, sentence
from ddp_trainer.observe.work import WINDOW_UPDATES, WorkMeter, make_work_meter
from ddp_trainer.ranks.agreement import NOT_MEASURED, RankSeconds
from ddp_wire.activity import Activity
from ddp_wire.messages import Straggler
from tests.trainer.rank_processes import Launcher

ON_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def work(data: float, forward: float) -> RankSeconds:
    return RankSeconds(0.0, data, forward)


SHARES = list(enumerate([6, 5, 5]))
"""Ranks with their samples in an update."""


def equal(world: int = 4) -> list[RankSeconds]:
    return [work(0.01, 0.04) for _ in range(world)]


def slowed(rank: int, factor: float = 1.3, part: str = "forward") -> list[RankSeconds]:
    works = equal()
    data, forward = (factor, 1.0) if part == "data" else (1.0, factor)
    works[rank] = work(works[rank].data * data, works[rank].forward * forward)
    return works


def started() -> StragglerMonitor:
    monitor = StragglerMonitor()
    assert monitor.assess(slowed(1, 9.0)) is None, "the first reading does not count"
    return monitor


def named(monitor: StragglerMonitor, readings: Sequence[Sequence[RankSeconds]]) -> list[Straggler]:
    return [found for works in readings if (found := monitor.assess(works)) is not None]


def test_slow_rank_is_named_once_after_it_persists() -> None:
    monitor = started()
    assert named(monitor, [slowed(2)] * (WINDOWS - 1)) == []
    assert named(monitor, [slowed(2)] * 20) == [Straggler(rank=2, ratio=1.24, part="forward pass")]
    assert monitor.found is not None


def test_rank_with_slow_data_is_named_with_its_data() -> None:
    (found,) = named(started(), [slowed(0, 6.0, "data")] * WINDOWS)
    assert (found.rank, found.part) == (0, "data")


@pytest.mark.parametrize("world", [2, 3])
def test_slow_rank_is_found_among_few_ranks(world: int) -> None:
    works = [work(0.0, 0.05)] * (world - 1) + [work(0.0, 0.07)]
    monitor = started()
    assert named(monitor, [[work(0.0, 0.05)] * world] * WINDOWS) == []
    (found,) = named(monitor, [works] * (WINDOWS + 2))
    assert found.rank == world - 1


@pytest.mark.parametrize(("slow", "names"), [(None, []), (0, [0]), (2, [2])])
def test_rank_with_more_samples_is_not_named_for_taking_longer(
    slow: int | None, names: list[int]
) -> None:
    monitor = StragglerMonitor([6, 5, 5])
    works = [work(0.0, 0.01 * share * (1.5 if rank == slow else 1)) for rank, share in SHARES]
    readings = [works] * 12
    assert [found.rank for found in named(monitor, readings)] == names


def test_delay_in_one_reading_names_no_straggler() -> None:
    monitor = started()
    assert named(monitor, [slowed(1, 3.0), equal(), slowed(2, 3.0), slowed(3, 3.0)] * 5) == []


def test_straggler_that_recovers_is_cleared_and_can_be_named_again() -> None:
    monitor = started()
    assert len(named(monitor, [slowed(2)] * WINDOWS)) == 1
    named(monitor, [equal()] * WINDOWS)
    assert monitor.found is None
    assert len(named(monitor, [slowed(2)] * WINDOWS)) == 1


def test_another_rank_replaces_the_straggler() -> None:
    monitor = started()
    named(monitor, [slowed(2)] * WINDOWS)
    assert [one.rank for one in named(monitor, [slowed(1)] * WINDOWS)] == [1]


@pytest.mark.parametrize(
    "works", [[], [work(0.0, 0.1)], [work(0.0, 0.1), NOT_MEASURED], [NOT_MEASURED, NOT_MEASURED]]
)
def test_missing_or_partial_readings_name_no_straggler(works: list[RankSeconds]) -> None:
    assert named(started(), [works] * 9) == []


@pytest.mark.parametrize(("update", "found"), [(0.0, 1), (0.2, 1), (0.3, 0)])
def test_rank_that_hardly_delays_the_update_is_not_named(update: float, found: int) -> None:
    """The excess of 12 ms is less than a twentieth of the update."""
    works = [replace(one, step=update) for one in slowed(2)]
    assert len(named(started(), [works] * WINDOWS)) == found


@pytest.mark.slow
def test_noise_of_equal_ranks_names_no_rank() -> None:
    noise = random.Random(7)  # noqa: S311 (a test's noise)
    readings = [[work(0.0, noise.gauss(0.05, 0.004)) for _ in range(64)] for _ in range(2000)]
    assert named(started(), readings) == []


def disturbed(
    world: int, seed: int, *, sigma: float, memory: float, slow: float = 1.0
) -> list[list[RankSeconds]]:
    """Return readings of equal ranks on a busy machine. Rank 0 is slow from the tenth reading on.

    The load changes slowly: `memory` is the part of its deviation that lasts to the next reading.
    """
    noise, loads, readings = random.Random(seed), [0.0] * world, []  # noqa: S311 (a test's noise)
    for reading in range(60):
        new = [noise.gauss(0.0, sigma * math.sqrt(1.0 - memory**2)) for _ in loads]
        loads = [memory * old + more for old, more in zip(loads, new, strict=True)]
        factors = [slow if reading >= 10 and rank == 0 else 1.0 for rank in range(world)]
        times = [0.05 * math.exp(x) * f for x, f in zip(loads, factors, strict=True)]
        readings.append([work(0.0, one) for one in times])
    return readings


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(("sigma", "memory"), [(0.1, 0.0), (0.2, 0.5), (0.4, 0.5), (0.05, 0.8)])
def test_few_equal_ranks_on_a_busy_machine_are_not_named_as_stragglers(
    world: int, sigma: float, memory: float
) -> None:
    runs = [disturbed(world, seed, sigma=sigma, memory=memory) for seed in range(20)]
    assert [named(StragglerMonitor(), readings) for readings in runs] == [[]] * len(runs)


@pytest.mark.parametrize("world", [2, 3])
def test_slow_rank_among_few_is_named_on_a_quiet_machine(world: int) -> None:
    for seed in range(20):
        readings = disturbed(world, seed, sigma=0.01, memory=0.5, slow=1.3)
        (found,) = named(StragglerMonitor(), readings[: 10 + WINDOWS])
        assert found.rank == 0


def test_message_about_a_straggler_names_rank_and_part() -> None:
    assert sentence(Straggler(rank=3, ratio=1.44, part="data")) == (
        "rank 3 needs 1.4 times as long as the others for its data, and all other ranks wait for it"
    )


def test_own_time_counts_only_data_and_forward_passes() -> None:
    now = 0.0
    meter = WorkMeter(clock=lambda: now)

    def spend(activity: Activity, seconds: float) -> None:
        nonlocal now
        meter.enter(activity)
        now += seconds

    for update in range(WINDOW_UPDATES):
        assert meter.read() is NOT_MEASURED
        for _ in range(2):  # Two micro-batches.
            spend(Activity.DATA, 0.5)
            spend(Activity.FORWARD, 2.0 + (update > 3) * 50)  # Some updates are disturbed.
            spend(Activity.BACKWARD, 9.0)
        spend(Activity.OPTIMIZER, 7.0)
        meter.update()
    assert meter.read() == RankSeconds(step=30.0, data=1.0, forward=4.0)
    assert meter.read() is NOT_MEASURED


def test_time_that_a_rank_waits_for_a_core_is_not_its_own_time() -> None:
    now = waited = 0.0
    meter = WorkMeter(lambda: now, lambda: waited)
    for update in range(WINDOW_UPDATES):
        for activity in (Activity.DATA, Activity.FORWARD, Activity.BACKWARD):
            meter.enter(activity)
            now += 2.0 + update
            waited += update
        meter.update()
    assert meter.read() == RankSeconds(step=12.0, data=2.0, forward=2.0)


@pytest.mark.parametrize(
    ("device", "world", "leaves_out"),
    [("cpu", 1, False), ("cpu", 2, True), ("cpu", 8, True), ("cpu", 9, False), ("cuda", 2, False)],
)
def test_own_time_excludes_waits_for_a_core_if_ranks_share_a_machine(
    monkeypatch: pytest.MonkeyPatch, device: str, world: int, leaves_out: bool
) -> None:
    waits = count()
    monkeypatch.setattr("ddp_trainer.observe.work.run_queue_seconds", lambda: 100.0 * next(waits))
    meter = make_work_meter(torch.device(device), world)
    for _ in range(WINDOW_UPDATES):
        meter.enter(Activity.FORWARD)
        meter.enter(Activity.BACKWARD)
        meter.update()
    assert (meter.read().forward < -99.0) == leaves_out


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CUDA)])
def test_rank_slowed_by_a_third_is_named_within_30_updates(launcher: Launcher, device: str) -> None:
    gang = launcher.train(
        "--task=sample_tasks:build",
        f"--device={device}",
        "--global_batch=8",
        "--max_steps=140",
        "--log.every_steps=10",
        "--task.eval_samples=0",
        "--task.forward_seconds=0.05",
        "--task.slow_rank=1",
        "--task.slow_after=60",
        world=2,
    )
    assert gang.wait() == [0, 0]
    events = gang.events()
    (index,) = [i for i, one in enumerate(events) if "times as long" in one.get("message", "")]
    message = events[index]["message"]
    assert re.match(r"rank 1 needs 1\.[2-5] times as long as the others for its forward", message)
    after = next(one["step"] for one in events[index:] if one["event"] == "progress")
    assert 60 < after <= 90
