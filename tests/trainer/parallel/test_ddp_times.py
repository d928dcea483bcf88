"""Times of the all-reduce in progress reports: DDP measures them, also with gloo."""

from typing import Any

import pytest
from torch import nn

from ddp_trainer.parallel.ddp_times import mean_times, newest_times
from tests.trainer.rank_processes import Gang, Launcher

ARGUMENTS = ("--task=sample_tasks:build", "--max_steps=20", "--global_batch=10")


def progress(gang: Gang) -> dict[str, Any]:
    """Return the newest progress event."""
    assert set(gang.wait()) == {0}, gang.err(0)
    return gang.events("progress")[-1]


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_progress_reports_the_times_of_the_newest_measured_all_reduce(
    launcher: Launcher, strategy: str
) -> None:
    event = progress(launcher.train(*ARGUMENTS, f"--parallel.strategy={strategy}", world=2))
    assert 0 < event["allreduce_seconds"] < 10
    assert 0 <= event["allreduce_overlap_seconds"] <= event["allreduce_seconds"]


@pytest.mark.slow
def test_all_reduce_time_includes_the_wait_for_a_rank_that_begins_later(launcher: Launcher) -> None:
    """The forward passes of rank 1 take 0.4 s longer than those of rank 0."""
    slow = ("--task.forward_seconds=0.02", "--task.slow_rank=1", "--task.slow_factor=21")
    event = progress(launcher.train(*ARGUMENTS, *slow, "--task.slow_after=0", world=2))
    assert event["allreduce_seconds"] > 0.34


@pytest.mark.slow
def test_all_reduce_times_are_absent_with_strategies_that_measure_none(launcher: Launcher) -> None:
    fully_sharded = launcher.train(*ARGUMENTS, "--parallel.strategy=fsdp2", world=2)
    alone = launcher.train(*ARGUMENTS, world=None)
    for gang in (fully_sharded, alone):
        assert not [name for name in progress(gang) if name.startswith("allreduce")]


class Logged(nn.Module):
    """A fake DDP module with measured times."""

    def __init__(self, **nanoseconds: int) -> None:
        super().__init__()
        self.nanoseconds = nanoseconds

    def _get_ddp_logging_data(self) -> dict[str, int]:
        return self.nanoseconds


PARTS = {
    "forward_compute_time": 4_000_000_000,
    "backward_compute_time": 3_000_000_000,
    "backward_comm_time": 2_000_000_000,
    "backward_compute_comm_overlap_time": 1_000_000_000,
}


def test_all_reduce_times_are_in_seconds() -> None:
    means = {f"avg_{name}": 2 * value for name, value in PARTS.items()}
    wrapped = Logged(**PARTS, **means)
    newest, mean = newest_times(wrapped), mean_times(wrapped)
    assert newest is not None
    assert mean is not None
    assert (newest.forward, newest.backward, newest.reduction, newest.overlap) == (4, 3, 2, 1)
    assert (mean.forward, mean.backward, mean.reduction, mean.overlap) == (8, 6, 4, 2)
    assert newest.exposed == 1


@pytest.mark.parametrize(
    "wrapped",
    [nn.Linear(1, 1), Logged(), Logged(**dict.fromkeys(PARTS, 0)), Logged(iteration=3)],
    ids=["no DDP", "no times", "not measured yet", "older torch"],
)
def test_all_reduce_times_are_absent_before_the_first_measurement(wrapped: nn.Module) -> None:
    assert newest_times(wrapped) is None
    assert mean_times(wrapped) is None
